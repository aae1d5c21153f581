"""Every operation of every door, in every state of the rules, by every way of logging in.

Each cell is tried with real bytes on one broker.  An operation that stands in a door's registry
and not in its table here fails.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from tests.security.guarded_world import MAPPING, Authority, GuardedBroker, Wire, guarded
from tests.security.matrix import (
    matrix_blipmq,
    matrix_cursus,
    matrix_fluvio,
    matrix_kafka,
    matrix_rustlog,
)
from tests.security.matrix.matrix_cells import EDGE, GROUP, STATES, TOPIC, TRANSACTION, Asked, Way

from pentalog.broker.port import Committed
from pentalog.broker.security import Principal
from pentalog.model.types import Partition

pytestmark = pytest.mark.clients
PASSWORD = "correct horse"
CONFIGURED_KEY = "configured-key"


class Bench:
    """The one broker of all cells, and what its doors need."""

    def __init__(
        self, broker: GuardedBroker, authority: Authority, signer: rsa.RSAPrivateKey
    ) -> None:
        claims = {"sub": "edge", "exp": int(time.time()) + 3600}
        self.bearer = jwt.encode(claims, signer, "RS256", {"kid": "one"})
        self.broker = broker
        self.edge = authority.client("edge")
        self.trust = authority.trust()
        self.key = broker.key_of("edge")
        users, tokens = broker.facade.users, broker.facade.tokens
        broker.call(lambda: users.set_password("edge", PASSWORD))
        token = broker.call(lambda: tokens.create(EDGE, EDGE, (), -1))
        secret = broker.call(lambda: tokens.secret(token.token_id))
        self.token_id = token.token_id
        other = Principal("User", matrix_kafka.OTHER)
        broker.call(lambda: tokens.create(other, other, (), -1))
        self.token = base64.b64encode(secret).decode()
        for name in (TOPIC, "m-policy"):
            broker.topic(name)
        self._prepare()

    def set_the_scene(self, asked: Asked) -> None:
        doomed = asked.gone or asked.there
        if doomed:
            topics = self.broker.facade.topics
            known = self.broker.call(lambda: {topic.name for topic in topics.all()})
            if doomed in known:
                self.broker.call(lambda: topics.delete(doomed))
        if asked.there:
            self.broker.topic(asked.there)

    def _prepare(self) -> None:
        facade = self.broker.facade
        self.broker.call(
            lambda: facade.groups.offsets.commit(GROUP, {Partition(TOPIC, 0): Committed(0)})
        )
        self.broker.call(lambda: facade.transactions.identify(TRANSACTION, timeout_ms=1000))
        self.broker.topic(matrix_cursus.EVENTS, 1)
        options = facade.sourcing.options
        self.broker.call(lambda: options.set(matrix_cursus.EVENTS, {"event_sourcing": "true"}))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("matrix")
    authority = Authority(directory / "certificates")
    doors = ("rustlog", "blipmq", "cursus", "fluvio-sc", "fluvio-spu")
    listeners = [name + demand for name in doors for demand in ("", "+tls")]
    listeners += ["kafka+sasl", "kafka+tls"]
    signer = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    keys = directory / "keys.json"
    public = RSAAlgorithm.to_jwk(signer.public_key(), as_dict=True)
    keys.write_text(json.dumps({"keys": [{**public, "kid": "one", "alg": "RS256"}]}))
    with guarded(
        directory / "data",
        listeners,
        super_users="User:admin",
        listener_principals="rustlog=User:edge,fluvio-sc=User:edge,fluvio-spu=User:edge",
        tls_certificate=str(authority.server()),
        tls_client_ca=str(authority.file),
        tls_client_authentication="requested",
        ssl_principal_mapping_rules=MAPPING,
        delegation_token_secret="a secret of tokens",
        blipmq_api_keys=CONFIGURED_KEY,
        flush_interval_ms=0,
        sasl_mechanisms="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        oauth_jwks_file=str(keys),
    ) as broker:
        yield Bench(broker, authority, signer)


def execute(bench: Bench, operations: list[Asked], ways: list[Way]) -> int:
    """Try every cell; how many there were."""
    connections = {way.name: way.connect() for way in ways}
    tried = 0
    wrong: list[str] = []
    try:
        for asked in operations:
            for name, state in STATES.items():
                for who in {way.who for way in ways}:
                    rules = state.rules(asked.needs, who) if asked.needs else []
                    bench.broker.set_rules(rules)
                    for way in (way for way in ways if way.who == who):
                        bench.set_the_scene(asked)
                        connection = way.connect() if asked.fresh else connections[way.name]
                        admitted = asked.ask(connection)
                        if asked.fresh:
                            connection.close()
                        tried += 1
                        if admitted is None:
                            continue
                        if admitted is not (state.admits or not asked.needs):
                            outcome = "admitted" if admitted else "refused"
                            wrong.append(f"{asked.name}, {name}, {way.name}: {outcome}")
    finally:
        for connection in connections.values():
            connection.close()
    assert not wrong, "\n".join(wrong)
    return tried


def covered(operations: list[Asked]) -> set[str]:
    return {asked.name.partition(":")[0] for asked in operations}


def logged_in(bench: Bench, listener: str, key: str, **options: object) -> Callable[[], Wire]:
    def connect() -> Wire:
        trust = bench.edge if options.get("certificate") else None
        wire = bench.broker.connect(listener, trust)
        matrix_blipmq.log_in(wire, key)
        return wire

    return connect


def test_rustlog(bench: Bench) -> None:
    operations = list(matrix_rustlog.operations())
    assert covered(operations) == matrix_rustlog.REGISTRY
    ways = [
        Way("principal of the listener", lambda: bench.broker.connect("rustlog")),
        Way("certificate", lambda: bench.broker.connect("rustlog+tls", bench.edge)),
    ]
    assert execute(bench, operations, ways) == 20 * 6 * 2


def test_blipmq(bench: Bench) -> None:
    configured = Principal("User", "blipmq")
    numbers = []
    for key, who in ((bench.key, EDGE), (CONFIGURED_KEY, configured)):
        bench.broker.set_rules(STATES["allowed"].rules(_reading(), who))
        owner = bench.broker.connect("blipmq")
        matrix_blipmq.log_in(owner, key)
        numbers.append(matrix_blipmq.subscribed(owner))
        owner.close()
    operations = list(matrix_blipmq.operations(*numbers))
    assert covered(operations) == matrix_blipmq.REGISTRY
    ways = [
        Way("key of a user", logged_in(bench, "blipmq", bench.key)),
        Way("token", logged_in(bench, "blipmq", bench.token)),
        Way("configured key", logged_in(bench, "blipmq", CONFIGURED_KEY), configured),
        Way("certificate", logged_in(bench, "blipmq+tls", CONFIGURED_KEY, certificate=True)),
    ]
    assert execute(bench, operations, ways) == 11 * 6 * 4


def _reading() -> tuple[matrix_rustlog.Need, ...]:
    return (matrix_rustlog.rights.read_topic(TOPIC),)


def test_cursus(bench: Bench) -> None:
    credentials = f"principal=edge token={bench.key}"
    operations = list(matrix_cursus.operations(credentials))
    assert covered(operations) == matrix_cursus.REGISTRY

    def authenticated(token: str) -> Callable[[], Wire]:
        def connect() -> Wire:
            wire = bench.broker.connect("cursus")
            said = matrix_cursus.say(wire, f"AUTH principal=edge token={token}")
            assert said == b"OK principal=edge authenticated=true"
            return wire

        return connect

    def inline() -> Wire:
        wire = bench.broker.connect("cursus")
        matrix_cursus.say(wire, f"LIST principal=edge auth_token={bench.key}")
        return wire

    bench.broker.call(lambda: bench.broker.facade.users.set_password("edge", "password"))
    ways = [
        Way("AUTH by password", authenticated("password")),
        Way("AUTH by key", authenticated(bench.key)),
        Way("AUTH by token", authenticated(bench.token)),
        Way("inline", inline),
        Way("certificate", lambda: bench.broker.connect("cursus+tls", bench.edge)),
    ]
    assert execute(bench, operations, ways) == len(operations) * 6 * 5


def test_fluvio(bench: Bench) -> None:
    operations = list(matrix_fluvio.operations())
    assert covered(operations) == matrix_fluvio.REGISTRY
    broker = bench.broker

    def plain() -> matrix_fluvio.Pair:
        wires = broker.connect("fluvio-sc"), broker.connect("fluvio-spu")
        return matrix_fluvio.connect(broker, *wires)

    def certified() -> matrix_fluvio.Pair:
        wires = (
            broker.connect("fluvio-sc+tls", bench.edge),
            broker.connect("fluvio-spu+tls", bench.edge),
        )
        return matrix_fluvio.connect(broker, *wires)

    ways = [Way("principal of the listener", plain), Way("certificate", certified)]
    assert execute(bench, operations, ways) == len(operations) * 6 * 2


def test_kafka(bench: Bench) -> None:
    operations = list(matrix_kafka.operations())
    assert covered(operations) == matrix_kafka.REGISTRY
    broker = bench.broker
    broker.call(lambda: broker.facade.users.set_password("edge", PASSWORD))

    def by_password(mechanism: str) -> Way:
        return Way(
            mechanism,
            lambda: matrix_kafka.by_password(broker.connect("kafka+sasl"), mechanism, PASSWORD),
        )

    def by_token() -> matrix_kafka.Client:
        wire = broker.connect("kafka+sasl")
        return matrix_kafka.by_token(wire, bench.token_id, bench.token)

    ways = [
        by_password("PLAIN"),
        by_password("SCRAM-SHA-256"),
        by_password("SCRAM-SHA-512"),
        Way(
            "OAUTHBEARER",
            lambda: matrix_kafka.by_bearer(broker.connect("kafka+sasl"), bench.bearer),
        ),
        Way("delegation token", by_token),
        Way("certificate", lambda: matrix_kafka.Client(broker.connect("kafka+tls", bench.edge))),
    ]
    assert execute(bench, operations, ways) == len(operations) * 6 * 6

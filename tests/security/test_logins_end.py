"""Logins end with what they were made by: a user, a verifier, a key or a token."""

from __future__ import annotations

import base64
import contextlib
import struct
import time
from collections.abc import Iterator

import pytest
from scramp import ScramClient
from tests.security.guarded_world import GuardedBroker, Wire, guarded
from tests.security.matrix.matrix_blipmq import answers, frame, log_in, text
from tests.security.matrix.matrix_cursus import say
from tests.security.matrix.matrix_kafka import Client, by_password, by_token, records

from pentalog.broker.security import Kind, Principal, Rule
from pentalog.broker.users import Mechanism
from pentalog.clients.kafka import messages
from pentalog.clients.kafka.messages import ms
from pentalog.model.errors import UserNotFound
from pentalog.model.types import Partition
from pentalog.protocols.blipmq.frames import FrameType

PASSWORD = "correct-horse"
EDGE = Principal("User", "edge")
TOPIC = "orders"
PLACE = Partition(TOPIC, 0)
EVERYTHING = [
    Rule(kind, name, False, EDGE, "*", None, True)
    for kind, name in ((Kind.TOPIC, "*"), (Kind.GROUP, "*"), (Kind.CLUSTER, "kafka-cluster"))
]
UNAUTHORIZED = 29
NOT_AUTHENTICATED = 58
WAYS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "token")


@pytest.fixture(scope="module", params=["rules", "no rules"])
def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GuardedBroker]:
    """What is taken back is gone also where everybody who logs in may do everything."""
    more = {"super_users": "User:admin"} if request.param == "rules" else {}
    with guarded(
        tmp_path_factory.mktemp("ends"),
        ("kafka+sasl", "blipmq", "cursus+auth"),
        delegation_token_secret="a secret of tokens",
        flush_interval_ms=0,
        **more,
    ) as broker:
        broker.topic(TOPIC)
        broker.call(lambda: broker.facade.users.set_password("admin", PASSWORD))
        if more:
            broker.set_rules(EVERYTHING)
        yield broker


@pytest.fixture
def broker(started: GuardedBroker) -> Iterator[GuardedBroker]:
    """With the user `edge`."""
    started.call(lambda: started.facade.users.set_password("edge", PASSWORD))
    yield started
    started.hang_up()
    with contextlib.suppress(UserNotFound):
        delete(started)


def delete(broker: GuardedBroker) -> None:
    broker.call(lambda: broker.facade.users.drop("edge"))


def end(broker: GuardedBroker) -> int:
    return broker.call(lambda: broker.facade.log.marks(PLACE).end)


def enter(broker: GuardedBroker, way: str) -> tuple[Wire, Client]:
    """Somebody at Kafka's door."""
    wire = broker.connect("kafka+sasl")
    if way != "token":
        return wire, by_password(wire, way, PASSWORD)
    tokens = broker.facade.tokens
    token = broker.call(lambda: tokens.create(EDGE, EDGE, (), -1))
    secret = base64.b64encode(broker.call(lambda: tokens.secret(token.token_id))).decode()
    return wire, by_token(wire, token.token_id, secret)


def produce(client: Client) -> int:
    (answer,) = client.ask(0, 9, records(TOPIC)).responses
    return int(answer.partition_responses[0].error_code)


@pytest.mark.parametrize("way", WAYS)
def test_kafka_logins_end_with_their_user(broker: GuardedBroker, way: str) -> None:
    wire, client = enter(broker, way)
    assert produce(client) == 0
    before = end(broker)
    delete(broker)
    with pytest.raises(ConnectionError):
        produce(client)
    assert wire.closed
    assert end(broker) == before


def test_a_waiting_fetch_gets_nothing_that_comes_later(broker: GuardedBroker) -> None:
    admin = by_password(broker.connect("kafka+sasl"), "PLAIN", PASSWORD, "admin")
    wire, _ = enter(broker, "PLAIN")
    at = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": end(broker),
        "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1000,
    }  # fmt: skip
    fetch = {
        "replica_id": -1, "max_wait": ms(60_000), "min_bytes": 1, "max_bytes": 1000,
        "isolation_level": 0, "session_id": 0, "session_epoch": -1, "rack_id": "",
        "topics": [{"topic": TOPIC, "partitions": [at]}], "forgotten_topics_data": [],
    }  # fmt: skip
    # The first is answered by the turn that lets the second wait.
    asked = (messages.request(18, 0, 1, b"", {}), messages.request(1, 11, 2, b"", fetch))
    wire.socket.sendall(b"".join(struct.pack(">I", len(each)) + each for each in asked))
    wire.receive()
    delete(broker)
    assert produce(admin) == 0
    (answer,) = messages.answer(1, 11, wire.receive()).responses
    assert answer.partitions[0].error_code == UNAUTHORIZED
    assert not answer.partitions[0].records
    assert wire.closed


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_kafka_logins_end_with_their_verifier(broker: GuardedBroker, mechanism: Mechanism) -> None:
    clients = {way: enter(broker, way) for way in WAYS}
    broker.call(lambda: broker.facade.users.drop_verifier("edge", mechanism))
    wire, _ = clients.pop(mechanism.value)
    assert wire.closed
    for _, client in clients.values():
        assert produce(client) == 0


def test_a_changed_password_ends_no_login(broker: GuardedBroker) -> None:
    clients = [enter(broker, way)[1] for way in WAYS]
    broker.call(lambda: broker.facade.users.set_password("edge", "another"))
    for client in clients:
        assert produce(client) == 0


@pytest.mark.parametrize("expire", ["at once", "soon"])
def test_kafka_logins_end_with_their_token(broker: GuardedBroker, expire: str) -> None:
    """Asked for by its owner, through the door."""
    _, owner = enter(broker, "PLAIN")
    made = owner.ask(38, 2, {"renewers": [], "max_lifetime": ms(-1)})
    wire = broker.connect("kafka+sasl")
    by_token(wire, made.token_id, base64.b64encode(made.hmac).decode())
    period = ms(-1 if expire == "at once" else 50)
    expired = owner.ask(40, 2, {"hmac": made.hmac, "expiry_time_period": period})
    assert expired.error_code == 0
    assert wire.closed
    assert produce(owner) == 0


def test_tokens_end_with_their_owner(broker: GuardedBroker) -> None:
    _, owner = enter(broker, "PLAIN")
    made = owner.ask(38, 2, {"renewers": [], "max_lifetime": ms(-1)})
    delete(broker)
    assert broker.call(lambda: broker.facade.tokens.get(made.token_id)) is None


def test_who_is_deleted_while_he_logs_in_is_not_let_in(broker: GuardedBroker) -> None:
    client = ScramClient(["SCRAM-SHA-256"], "edge", PASSWORD)
    wire = broker.connect("kafka+sasl")
    asking = Client(wire)
    assert asking.ask(17, 1, {"mechanism": "SCRAM-SHA-256"}).error_code == 0
    first = asking.ask(36, 2, {"auth_bytes": client.get_client_first().encode()})
    client.set_server_first(first.auth_bytes.decode())
    delete(broker)
    last = asking.ask(36, 2, {"auth_bytes": client.get_client_final().encode()})
    assert last.error_code == NOT_AUTHENTICATED
    assert wire.closed


def test_who_deletes_himself_is_told_that_it_is_done(broker: GuardedBroker) -> None:
    wire, client = enter(broker, "SCRAM-SHA-512")
    deletions = [{"name": "edge", "mechanism": mechanism} for mechanism in (1, 2)]
    answer = client.ask(51, 0, {"deletions": deletions, "upsertions": []})
    assert [int(result.error_code) for result in answer.results] == [0]
    assert wire.closed


def test_blipmq_logins_end_with_their_key(broker: GuardedBroker) -> None:
    ended, going_on = broker.connect("blipmq"), broker.connect("blipmq")
    log_in(ended, broker.key_of("edge"))
    (key,) = [key for key in broker.call(broker.facade.users.keys) if key.user == "edge"]
    log_in(going_on, broker.key_of("edge"))
    publish = frame(FrameType.PUBLISH, 4, b"\1" + text(TOPIC) + b"x")
    before = end(broker)
    broker.call(lambda: broker.facade.users.drop_key(key.fingerprint))
    with contextlib.suppress(ConnectionError):
        ended.send(publish)
    assert ended.closed
    assert answers(going_on, publish) == []
    assert end(broker) == before + 1
    delete(broker)
    assert going_on.closed


@pytest.mark.parametrize("by_key", [True, False])
def test_cursus_logins_end_with_their_user(broker: GuardedBroker, by_key: bool) -> None:
    wire = broker.connect("cursus+auth")
    secret = broker.key_of("edge") if by_key else PASSWORD
    publish = f"PUBLISH topic={TOPIC} producerId=p message=x"
    assert say(wire, f"AUTH principal=edge token={secret}").startswith(b"OK")
    assert b"OK" in say(wire, publish)
    before = end(broker)
    delete(broker)
    assert b"authentication_required" in say(wire, publish)
    assert b"authentication_failed" in say(wire, f"AUTH principal=edge token={secret}")
    assert end(broker) == before


def test_logins_are_forgotten_with_their_connections(broker: GuardedBroker) -> None:
    for way in WAYS:
        enter(broker, way)[0].close()
    say(broker.connect("cursus+auth"), f"AUTH principal=edge token={PASSWORD}")
    log_in(broker.connect("blipmq"), broker.key_of("edge"))
    broker.hang_up()
    facade = broker.facade
    deadline = time.monotonic() + 200
    while broker.call(lambda: len(facade.users.logins) + len(facade.tokens.logins)):
        assert time.monotonic() < deadline
        time.sleep(0.01)

"""What must not be let in at the doors of RustLog, BlipMQ, Cursus and Fluvio, and is not."""

from __future__ import annotations

import base64
import datetime
import json
import ssl
import struct
import time
from collections.abc import Callable, Iterator

import pytest
from tests.security.guarded_world import MAPPING, Authority, GuardedBroker, Wire, guarded
from tests.security.matrix.matrix_blipmq import answers, frame, log_in, text
from tests.security.matrix.matrix_cursus import say
from tests.security.matrix.matrix_fluvio import Pair
from tests.support.cursus_world import Message, batch, messages_of
from tests.unit.protocols.fluvio.fluvio_world import produce, stream_fetch, their_batch

from pentalog.broker.security import ANY, Kind, Operation, Principal, Rule
from pentalog.model.types import Partition

pytestmark = pytest.mark.clients
EDGE = Principal("User", "edge")
PASSWORD = "correct-horse"
EVERYTHING = [
    Rule(kind, "kafka-cluster" if kind is Kind.CLUSTER else ANY, False, EDGE, ANY, None, True)
    for kind in Kind
]


class Bench:
    def __init__(self, broker: GuardedBroker, authority: Authority, stranger: Authority) -> None:
        self.broker = broker
        self.authority = authority
        self.stranger = stranger
        self.key = broker.key_of("edge")

    def end(self, topic: str) -> int:
        return self.broker.call(lambda: self.broker.facade.log.marks(Partition(topic, 0)).end)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("negative")
    authority = Authority(directory / "certificates")
    stranger = Authority(directory / "strangers")
    listeners = ["blipmq", "cursus", "cursus+auth", "fluvio-sc", "fluvio-spu"]
    listeners += [f"{name}+tls" for name in ("rustlog", "cursus", "fluvio-sc", "fluvio-spu")]
    with guarded(
        directory / "data",
        listeners,
        super_users="User:admin",
        listener_principals="fluvio-sc=User:edge,fluvio-spu=User:edge",
        tls_certificate=str(authority.server()),
        tls_client_ca=str(authority.file),
        tls_client_authentication="required",
        ssl_principal_mapping_rules=MAPPING,
        delegation_token_secret="a secret of tokens",
        flush_interval_ms=0,
    ) as broker:
        broker.call(lambda: broker.facade.users.set_password("edge", PASSWORD))
        for name in ("orders", "secrets"):
            broker.topic(name)
        yield Bench(broker, authority, stranger)


@pytest.fixture
def bench(started: Bench) -> Iterator[Bench]:
    """With every right given to `edge`, and no failed login remembered."""
    started.broker.set_rules(EVERYTHING)
    say(started.broker.connect("cursus"), f"AUTH principal=edge token={started.key}")
    yield started
    started.broker.hang_up()


def batch_of(payload: bytes) -> bytes:
    return batch([Message(payload, producer=b"p")], topic="orders")


def framed(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(payload)) + payload for payload in payloads)


# Cursus


@pytest.mark.parametrize("listener", ["cursus", "cursus+auth"])
def test_a_batch_of_nobody_is_not_stored(bench: Bench, listener: str) -> None:
    before = bench.end("orders")
    wire = bench.broker.connect(listener)
    answer = json.loads(wire.ask(batch_of(b"x")))
    assert answer["error"] == "authentication_required command=BATCH"
    assert say(wire, "LIST topic=orders") == b"ERROR: authentication_required command=LIST"
    assert bench.end("orders") == before


def test_what_needs_no_login_is_served_without(bench: Bench) -> None:
    wire = bench.broker.connect("cursus+auth")
    assert say(wire, "PROTOCOL_INFO").startswith(b"OK protocol=cursus")
    assert say(wire, "NEGOTIATE version=1 features=*").startswith(b"OK protocol_version=1")
    assert say(wire, "LIST") == (
        b"ERROR: authentication_required class=authorization retryable=false command=LIST"
    )


def test_a_batch_behind_a_wrong_password_is_not_stored(bench: Bench) -> None:
    before = bench.end("orders")
    wire = bench.broker.connect("cursus+auth")
    auth = b"\0\0AUTH principal=edge token=wrong"
    wire.socket.sendall(
        framed(auth, batch_of(b"x"), b"\0\0PUBLISH topic=orders producerId=p message=x")
    )
    assert wire.receive() == b"ERROR: authentication_failed mechanism=PLAIN"
    assert json.loads(wire.receive())["error"] == "authentication_required command=BATCH"
    assert wire.receive() == b"ERROR: authentication_required command=PUBLISH"
    assert bench.end("orders") == before


def test_a_batch_behind_the_right_password_waits_for_it(bench: Bench) -> None:
    before = bench.end("orders")
    wire = bench.broker.connect("cursus+auth")
    wire.socket.sendall(
        framed(f"\0\0AUTH principal=edge token={PASSWORD}".encode(), batch_of(b"x"))
    )
    assert wire.receive() == b"OK principal=edge authenticated=true"
    assert json.loads(wire.receive())["status"] == "OK"
    assert bench.end("orders") == before + 1


def test_who_fails_to_be_somebody_else_is_nobody(bench: Bench) -> None:
    wire = bench.broker.connect("cursus")
    publish = "PUBLISH topic=orders producerId=p message=x"
    assert say(wire, f"AUTH principal=edge token={bench.key}").startswith(b"OK")
    assert b"OK" in say(wire, publish)
    assert b"authentication_failed" in say(wire, "AUTH principal=admin token=guess")
    # What somebody else was allowed a moment ago is not remembered.
    assert b"authentication_required" in say(wire, publish)


def test_credentials_inside_of_commands(bench: Bench) -> None:
    wire = bench.broker.connect("cursus")
    half = say(wire, "LIST_OFFSETS topic=orders principal=edge")
    assert half == b"ERROR: invalid_auth reason=principal_and_auth_token_required"
    wrong = say(wire, "LIST_OFFSETS topic=orders principal=edge auth_token=no")
    assert wrong == b"ERROR: authentication_failed mechanism=PLAIN"
    right = f"LIST_OFFSETS topic=orders principal=edge auth_token={PASSWORD}"
    assert say(wire, right).startswith(b"OK topic=orders")
    assert say(wire, "LIST_OFFSETS topic=orders").startswith(b"OK topic=orders")


def test_credentials_behind_a_message_are_not_stored(bench: Bench) -> None:
    wire = bench.broker.connect("cursus")
    ids = f"principal=edge auth_token={PASSWORD}"
    made = say(wire, f"INIT_PRODUCER_ID transactional_id=t {ids}").decode().split()
    producer = next(word for word in made if word.startswith("producerId="))
    epoch = next(word for word in made if word.startswith("epoch="))
    txn = f"transactional_id=t {producer} {epoch}"
    say(wire, f"BEGIN_TXN {txn} {ids}")
    said = say(wire, f"TXN_PUBLISH {txn} topic=secrets partition=0 seqNum=1 message=hello {ids}")
    assert said.startswith(b"OK"), said
    assert say(wire, f"END_TXN {txn} result=commit").startswith(b"OK")
    found = wire.ask(b"CONSUME topic=secrets partition=0 offset=0 member=m group=g")
    assert [message.payload for message in messages_of(found)] == [b"hello"]


def test_a_key_that_was_taken_away_is_worth_nothing(bench: Bench) -> None:
    users = bench.broker.facade.users
    key = bench.broker.call(lambda: users.add_key("edge", "doomed"))
    wire = bench.broker.connect("cursus")
    assert say(wire, f"AUTH principal=edge token={key}").startswith(b"OK")
    (kept,) = [one for one in bench.broker.call(users.keys) if one.label == "doomed"]
    bench.broker.call(lambda: users.drop_key(kept.fingerprint))
    for listener in ("cursus", "cursus+auth"):
        refused = say(bench.broker.connect(listener), f"AUTH principal=edge token={key}")
        assert b"authentication_failed" in refused


def test_a_stream_ends_with_the_right_to_read(bench: Bench) -> None:
    wire = bench.broker.connect("cursus")
    say(wire, f"AUTH principal=edge token={bench.key}")
    end = bench.end("orders")
    wire.send(f"\0\0STREAM topic=orders partition=0 offset={end} member=m group=g".encode())
    writer = bench.broker.connect("cursus")
    say(writer, f"AUTH principal=edge token={bench.key}")
    writer.ask(batch_of(b"seen"))
    assert [message.payload for message in messages_of(wire.receive())] == [b"seen"]
    deny = Rule(Kind.TOPIC, "orders", False, EDGE, ANY, Operation.READ, False)
    bench.broker.set_rules([*EVERYTHING, deny])
    writer.ask(batch_of(b"unseen"))
    closing = wire.receive()
    while closing.startswith(b"STREAM_CONTROL type=KEEPALIVE"):
        closing = wire.receive()
    assert b"reason=not_authorized" in closing
    assert wire.closed


def test_policies_are_a_view_of_the_rules(bench: Bench) -> None:
    wire = bench.broker.connect("cursus")
    say(wire, f"AUTH principal=edge token={bench.key}")
    say(wire, "CREATE topic=pol partitions=1 auth_policy=acl read_acl=ann,bob write_acl=*")
    rules = bench.broker.call(lambda: list(bench.broker.facade.rules.all()))
    assert {str(rule) for rule in rules if rule.name == "pol"} == {
        "allow User:ann from * read topic pol",
        "allow User:bob from * read topic pol",
        "allow User:* from * write topic pol",
        "deny User:ANONYMOUS from * write topic pol",
    }
    mine = Rule(Kind.TOPIC, "pol", False, Principal("User", "cid"), ANY, Operation.READ, True)
    bench.broker.call(lambda: bench.broker.facade.rules.add([mine]))
    assert b"auth_policy=acl read_acl=ann,bob,cid write_acl=*" in say(wire, "METADATA topic=pol")
    assert b"auth_policy=deny_write" in say(wire, "CREATE topic=pol auth_policy=deny_write")
    refused = say(wire, "PUBLISH topic=pol producerId=p message=x")
    assert refused == b"ERROR: NOT_AUTHORIZED_FOR_TOPIC operation=write topic=pol"
    opened = say(wire, "CREATE topic=pol auth_policy=open")
    assert b"auth_policy=open read_acl= write_acl=" in opened
    assert b'"status":"OK"' in say(wire, "PUBLISH topic=pol producerId=p message=x").replace(
        b" ", b""
    )


# BlipMQ


def test_nothing_sent_before_auth_is_done(bench: Bench) -> None:
    before = bench.end("orders")
    wire = bench.broker.connect("blipmq")
    publish = frame(3, 4, b"\1" + text("orders") + b"x")
    hello, wrong = frame(1, 1, b"\0\1"), frame(2, 2, text("guess"))
    wire.socket.sendall(framed(hello, publish, wrong, publish, frame(7, 9)))
    kinds = [wire.receive() for _ in range(5)]
    assert [answer[0] for answer in kinds] == [5, 6, 6, 6, 6]
    assert [struct.unpack_from(">H", answer, 9)[0] for answer in kinds[1:]] == [401] * 4
    assert bench.end("orders") == before


def test_a_wrong_key_may_be_followed_by_the_right_one(bench: Bench) -> None:
    wire = bench.broker.connect("blipmq")
    wire.ask(frame(1, 1, b"\0\1"))
    assert b"invalid API key" in wire.ask(frame(2, 2, text(bench.key + "x")))
    assert wire.ask(frame(2, 3, text(bench.key)))[0] == 5
    assert answers(wire, frame(3, 4, b"\1" + text("orders") + b"x")) == []


def test_tokens_end(bench: Bench) -> None:
    tokens = bench.broker.facade.tokens
    token = bench.broker.call(lambda: tokens.create(EDGE, EDGE, (), -1))
    secret = bench.broker.call(lambda: tokens.secret(token.token_id))
    key = base64.b64encode(secret).decode()
    log_in(bench.broker.connect("blipmq"), key)
    bench.broker.call(lambda: tokens.drop(token.token_id))
    brief = bench.broker.call(lambda: tokens.create(EDGE, EDGE, (), 1))
    while bench.broker.call(lambda: tokens.get(brief.token_id)) is not None:
        time.sleep(0.001)
    expired = bench.broker.call(lambda: tokens.secret(brief.token_id))
    for worthless in (key, base64.b64encode(expired).decode()):
        wire = bench.broker.connect("blipmq")
        wire.ask(frame(1, 1, b"\0\1"))
        assert b"invalid API key" in wire.ask(frame(2, 2, text(worthless)))
        refused = say(bench.broker.connect("cursus"), f"AUTH principal=edge token={worthless}")
        assert b"authentication_failed" in refused


def brief_token(bench: Bench) -> tuple[str, Callable[[], None]]:
    """The secret of a token, and what makes it expire."""
    tokens = bench.broker.facade.tokens
    token = bench.broker.call(lambda: tokens.create(EDGE, EDGE, (), -1))
    secret = bench.broker.call(lambda: tokens.secret(token.token_id))

    def expire() -> None:
        bench.broker.call(lambda: tokens.prolong(token.token_id, 1))
        while bench.broker.call(lambda: tokens.get(token.token_id)) is not None:
            time.sleep(0.001)

    return base64.b64encode(secret).decode(), expire


def test_a_blipmq_login_ends_with_its_token(bench: Bench) -> None:
    key, expire = brief_token(bench)
    wire = bench.broker.connect("blipmq")
    log_in(wire, key)
    publish = frame(3, 4, b"\1" + text("orders") + b"x")
    assert answers(wire, publish) == []
    end = bench.end("orders")
    expire()
    wire.socket.sendall(framed(publish, frame(2, 5, text(bench.key))))
    assert b"authenticat" in wire.receive()
    assert b"token expired" in wire.receive()
    assert wire.closed
    assert bench.end("orders") == end


@pytest.mark.parametrize("listener", ["cursus", "cursus+auth"])
def test_a_cursus_login_ends_with_its_token(bench: Bench, listener: str) -> None:
    key, expire = brief_token(bench)
    wire = bench.broker.connect(listener)
    publish = "PUBLISH topic=orders producerId=p message=x"
    inline = f"PUBLISH topic=orders principal=edge auth_token={key} producerId=p message=x"
    assert say(wire, f"AUTH principal=edge token={key}").startswith(b"OK")
    assert b"OK" in say(wire, publish)
    assert b"OK" in say(wire, inline)
    end = bench.end("orders")
    expire()
    assert b"authentication_required" in say(wire, publish)
    assert b"authentication_required" in wire.ask(batch_of(b"x"))
    assert b"authentication_failed" in say(wire, inline)  # what was proved once is so no more
    assert bench.end("orders") == end
    assert say(wire, f"AUTH principal=edge token={bench.key}").startswith(b"OK")
    assert b"OK" in say(wire, publish)


@pytest.mark.parametrize("listener", ["cursus", "cursus+auth"])
def test_a_cursus_stream_ends_with_its_token(bench: Bench, listener: str) -> None:
    key, expire = brief_token(bench)
    wire = bench.broker.connect(listener)
    say(wire, f"AUTH principal=edge token={key}")
    end = bench.end("orders")
    wire.send(f"\0\0STREAM topic=orders partition=0 offset={end} member=m group=g".encode())
    writer = bench.broker.connect("cursus")
    say(writer, f"AUTH principal=edge token={bench.key}")
    writer.ask(batch_of(b"seen"))
    assert [message.payload for message in messages_of(wire.receive())] == [b"seen"]
    expire()
    writer.ask(batch_of(b"unseen"))
    closing = wire.receive()
    while closing.startswith(b"STREAM_CONTROL type=KEEPALIVE"):
        closing = wire.receive()
    assert b"reason=not_authorized" in closing
    assert wire.closed


# Fluvio and RustLog


def test_a_fluvio_stream_ends_with_the_right_to_read(bench: Bench) -> None:
    pair = Pair(bench.broker.connect("fluvio-sc"), bench.broker.connect("fluvio-spu"))
    pair.ask(0, produce("orders", their_batch(b"x")))
    opened = pair.ask(1003, stream_fetch("orders", 0, bytes_max=1))
    assert (opened.text(), opened.u32(), opened.u32(), opened.i16()) == ("orders", 1, 0, 0)
    deny = Rule(Kind.TOPIC, "orders", False, EDGE, ANY, Operation.READ, False)
    bench.broker.set_rules([*EVERYTHING, deny])
    refused = pair.ask(1003, stream_fetch("orders", 0))
    assert (refused.text(), refused.u32(), refused.u32(), refused.i16()) == ("orders", 0, 0, 13)


@pytest.mark.parametrize("listener", ["rustlog+tls", "cursus+tls", "fluvio-sc+tls"])
@pytest.mark.parametrize("fault", ["nobody", "stranger", "expired"])
def test_certificates_that_prove_nothing(bench: Bench, listener: str, fault: str) -> None:
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    trust = {
        "nobody": lambda: bench.authority.trust(),
        "stranger": lambda: bench.stranger.client("edge", trusting=bench.authority),
        "expired": lambda: bench.authority.client("edge", not_after=past),
    }[fault]()
    with pytest.raises((ssl.SSLError, ConnectionError)):  # noqa: PT012  # told late by TLS 1.3
        wire = bench.broker.connect(listener, trust)
        wire.ask(b"\xff")


def test_the_broker_must_prove_itself_too(bench: Bench) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        bench.broker.connect("rustlog+tls", bench.stranger.trust())


def test_plain_text_is_not_served_where_tls_is_demanded(bench: Bench) -> None:
    wire: Wire = bench.broker.connect("rustlog+tls")
    wire.send(b"\xff")
    assert wire.closed


def test_plain_text_is_told_by_its_first_byte_where_that_is_set(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with guarded(
        tmp_path_factory.mktemp("sniffed"),
        ("cursus+tls", "rustlog+tls"),
        super_users="User:edge",
        tls_certificate=str(bench.authority.server()),
        tls_client_ca=str(bench.authority.file),
        tls_client_authentication="required",
        ssl_principal_mapping_rules=MAPPING,
        cursus_tls_accepts_plaintext="true",
    ) as broker:
        certified = broker.connect("cursus+tls", bench.authority.client("edge"))
        assert say(certified, "CREATE topic=a partitions=1").startswith(b"OK")
        plain = broker.connect("cursus+tls")
        assert say(plain, "PROTOCOL_INFO").startswith(b"OK")
        # It has shown no certificate, so it is nobody.
        assert say(plain, "LIST") == b"OK count=0 topics="
        assert b"authentication_required" in say(plain, "DELETE topic=a")
        other = broker.connect("rustlog+tls")
        other.send(b"\xff")
        assert other.closed


def test_who_does_not_log_in_is_not_waited_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    with guarded(
        tmp_path_factory.mktemp("late"),
        ("blipmq", "cursus", "cursus+auth"),
        super_users="User:edge",
        login_timeout_ms=3_000,
    ) as broker:
        key = broker.key_of("edge")
        served = [broker.connect("cursus"), broker.connect("cursus+auth")]
        assert b"OK" in say(served[1], f"AUTH principal=edge token={key}")
        blipmq = broker.connect("blipmq")
        log_in(blipmq, key)
        late = [broker.connect("blipmq"), broker.connect("cursus+auth")]
        assert late[0].ask(frame(1, 1, b"\0\1"))[0] == 5
        assert all(wire.closed for wire in late)
        # Those who have logged in, or need not, stay.
        assert all(b"OK" in say(wire, "PROTOCOL_INFO") for wire in served)
        assert answers(blipmq) == []

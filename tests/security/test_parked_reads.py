"""Reads that wait when a right or a login is revoked get no record written afterwards.

RustLog has none: a Fetch at the end of a partition is answered at once.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.security.guarded_world import GuardedBroker, Wire, guarded
from tests.security.matrix.matrix_cursus import say
from tests.security.matrix.matrix_kafka import Client, by_password, records
from tests.support.cursus_world import Message, batch, messages_of
from tests.unit.protocols.fluvio.fluvio_world import request, stream_fetch

from pentalog.broker.security import ANY, Kind, Operation, Principal, Rule
from pentalog.clients.kafka import messages
from pentalog.clients.kafka.messages import ms
from pentalog.model.errors import UserNotFound
from pentalog.model.types import Partition
from pentalog.protocols.fluvio.codec import Reader, Writer
from pentalog.protocols.fluvio.errors import PERMISSION_DENIED

EDGE = Principal("User", "edge")
PASSWORD = "correct-horse"
TOPIC = "orders"
UNAUTHORIZED = 29
SPU_VERSION = 24
EVERYTHING = [
    Rule(kind, "kafka-cluster" if kind is Kind.CLUSTER else ANY, False, EDGE, ANY, None, True)
    for kind in Kind
]
DENIAL = Rule(Kind.TOPIC, TOPIC, False, EDGE, ANY, Operation.READ, False)
READS = [Rule(Kind.TOPIC, TOPIC, False, EDGE, ANY, Operation.READ, True)]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    with guarded(
        tmp_path_factory.mktemp("parked"),
        ("kafka+sasl", "cursus", "rustlog", "fluvio-sc", "fluvio-spu"),
        super_users="User:admin",
        listener_principals="fluvio-sc=User:edge,fluvio-spu=User:edge,rustlog=User:edge",
        flush_interval_ms=0,
    ) as broker:
        broker.topic(TOPIC)
        broker.call(lambda: broker.facade.users.set_password("admin", PASSWORD))
        yield broker


@pytest.fixture
def broker(started: GuardedBroker) -> Iterator[GuardedBroker]:
    """With the user `edge`, who may do everything."""
    started.set_rules(EVERYTHING)
    started.call(lambda: started.facade.users.set_password("edge", PASSWORD))
    yield started
    started.hang_up()
    with contextlib.suppress(UserNotFound):
        started.call(lambda: started.facade.users.drop("edge"))


def end(broker: GuardedBroker) -> int:
    return broker.call(lambda: broker.facade.log.marks(Partition(TOPIC, 0)).end)


def write(broker: GuardedBroker) -> None:
    """A record, by somebody whose rights do not change."""
    admin = by_password(broker.connect("kafka+sasl"), "PLAIN", PASSWORD, "admin")
    (answer,) = admin.ask(0, 9, records(TOPIC)).responses
    assert answer.partition_responses[0].error_code == 0


def deny(broker: GuardedBroker) -> None:
    broker.set_rules([*EVERYTHING, DENIAL])


def take_back(broker: GuardedBroker) -> None:
    """Of several rules, the one that allowed it."""
    broker.set_rules([rule for rule in EVERYTHING if rule.kind is not Kind.TOPIC])


def delete(broker: GuardedBroker) -> None:
    broker.call(lambda: broker.facade.users.drop("edge"))


RULES = [deny, take_back]
REVOCATIONS = [*RULES, delete]
Revoke = Callable[[GuardedBroker], None]


def fetch(offset: int, **more: Any) -> dict[str, Any]:
    at = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": offset,
        "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1000,
    }  # fmt: skip
    return {
        "replica_id": -1, "max_wait": ms(60_000), "min_bytes": 1, "max_bytes": 1000,
        "isolation_level": 0, "session_id": 0, "session_epoch": -1, "rack_id": "",
        "topics": [{"topic": TOPIC, "partitions": [at]}], "forgotten_topics_data": [], **more,
    }  # fmt: skip


def park(wire: Wire, fields: dict[str, Any]) -> None:
    """Send a Fetch that waits; returns when it does."""
    # The first is answered by the turn that lets the second wait.
    asked = (messages.request(18, 0, 1, b"", {}), messages.request(1, 11, 2, b"", fields))
    wire.socket.sendall(b"".join(struct.pack(">I", len(each)) + each for each in asked))
    wire.receive()


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("revoke", REVOCATIONS)
def test_a_kafka_fetch(broker: GuardedBroker, revoke: Revoke, in_session: bool) -> None:
    wire = broker.connect("kafka+sasl")
    client = by_password(wire, "SCRAM-SHA-256", PASSWORD)
    fields = fetch(end(broker))
    if in_session:
        begun = client.ask(1, 11, {**fields, "max_wait": ms(0), "session_epoch": 0})
        assert begun.session_id
        fields |= {"session_id": begun.session_id, "session_epoch": 1, "topics": []}
    park(wire, fields)
    revoke(broker)
    write(broker)
    (answer,) = messages.answer(1, 11, wire.receive()).responses
    assert answer.partitions[0].error_code == UNAUTHORIZED
    assert not answer.partitions[0].records


@pytest.mark.parametrize("by_key", [True, False])
@pytest.mark.parametrize("revoke", REVOCATIONS)
def test_a_cursus_stream(broker: GuardedBroker, revoke: Revoke, by_key: bool) -> None:
    wire = broker.connect("cursus")
    token = broker.key_of("edge") if by_key else PASSWORD
    say(wire, f"AUTH principal=edge token={token}")
    start = end(broker)
    wire.send(f"\0\0STREAM topic={TOPIC} partition=0 offset={start} member=m group=g".encode())
    writer = broker.connect("cursus")
    say(writer, f"AUTH principal=edge token={token}")
    writer.ask(batch([Message(b"seen", producer=b"p")], topic=TOPIC))
    assert [message.payload for message in messages_of(wire.receive())] == [b"seen"]
    revoke(broker)
    write(broker)
    closing = wire.receive()
    while closing.startswith(b"STREAM_CONTROL type=KEEPALIVE"):
        closing = wire.receive()
    assert b"reason=not_authorized" in closing
    assert wire.closed


@pytest.mark.parametrize("revoke", [*RULES, None])
def test_a_fluvio_stream(broker: GuardedBroker, revoke: Revoke | None) -> None:
    wire = broker.connect("fluvio-spu")
    wire.send(request(1003, stream_fetch(TOPIC, end(broker)), SPU_VERSION, 1)[4:])
    # Answered by a later turn than the one that lets the stream wait.
    marks = bytes(Writer(SPU_VERSION).u32(1).text(TOPIC).u32(1).u32(0).out)
    wire.ask(request(1002, marks, SPU_VERSION, 2)[4:])
    if revoke is not None:
        revoke(broker)
    write(broker)
    told = wire.receive()
    reader = Reader(memoryview(told), 4, len(told), SPU_VERSION)
    assert reader.text() == TOPIC
    reader.u32(), reader.u32()
    assert reader.i16() == (0 if revoke is None else PERMISSION_DENIED)


def test_a_rustlog_fetch_does_not_wait(broker: GuardedBroker) -> None:
    fields = {"topic": TOPIC, "partition": 0, "offset": end(broker), "max_bytes": 100}
    asked = json.dumps({"type": "Fetch", **fields, "group_id": "g"}).encode()
    answer = json.loads(broker.connect("rustlog").ask(asked))
    assert answer["type"] == "FetchResponse"


def test_clients_that_keep_their_rights_get_the_record(broker: GuardedBroker) -> None:
    """Without a revocation the same reads are served, so the tests above can fail."""
    wire = broker.connect("kafka+sasl")
    by_password(wire, "PLAIN", PASSWORD)
    park(wire, fetch(end(broker)))
    broker.set_rules([*EVERYTHING, *READS])
    write(broker)
    (answer,) = messages.answer(1, 11, wire.receive()).responses
    assert answer.partitions[0].error_code == 0
    assert answer.partitions[0].records
    Client(wire).close()

"""What any protocol acknowledged is in the answer to every later request of RustLog."""

from __future__ import annotations

import struct

import pytest
from rustlog_world import RustLogConnection, RustLogWorld, create, describe, fetch, fetched, produce

from pentalog.broker.port import Opened
from pentalog.model import batch
from pentalog.model.errors import BrokerError, OffsetOutOfRange
from pentalog.model.later import Later
from pentalog.model.types import Partition, Record

pytestmark = pytest.mark.local_engine("a cluster decides itself when a record is readable")

AT = Partition("demo", 0)


@pytest.fixture
def written(world: RustLogWorld, peer: RustLogConnection) -> RustLogConnection:
    """Three records of which nothing is durable, as `acks=1` of another protocol leaves them."""
    peer.ask(create("demo", 2))
    data = batch.build([Record(b"%d" % number) for number in range(3)], timestamp_ms=1000)
    world.disk.broker.log.append(AT, memoryview(data))
    assert world.disk.broker.log.marks(AT).durable == 0
    return peer


@pytest.mark.parametrize(("offset", "values"), [(0, [b"0", b"1", b"2"]), (2, [b"2"]), (3, [])])
def test_fetch(written: RustLogConnection, offset: int, values: list[bytes]) -> None:
    assert fetched(written.ask(fetch("demo", 0, offset))) == (values, 3)


def test_fetch_in_json(written: RustLogConnection) -> None:
    asked = {"topic": "demo", "partition": 0, "offset": 2, "max_bytes": 1000}
    assert written.say(type="Fetch", **asked)["next_offset"] == 3


def test_a_fetch_that_finds_enough_does_not_wait(
    world: RustLogWorld, written: RustLogConnection
) -> None:
    written.ask(fetch("demo", 0, 0))
    data = batch.build([Record(b"3")], timestamp_ms=1000)
    world.disk.broker.log.append(AT, memoryview(data))
    before = len(written.line.frames())
    written.feed(fetch("demo", 0, 2))
    assert fetched(written.line.frames()[before]) == ([b"2"], 3)


def test_describing(world: RustLogWorld, written: RustLogConnection) -> None:
    before = len(written.line.frames())
    written.feed(describe("demo") + describe("demo", 0))
    assert len(written.line.frames()) == before, (
        "no answer has an end that a power cut can take back"
    )
    written.run()
    whole, one = written.line.frames()[before:]
    assert struct.unpack(">IQIQ", whole[-24:]) == (0, 3, 1, 0)
    assert struct.unpack(">IQ", one[-12:]) == (0, 3)
    assert world.disk.broker.log.marks(AT).durable == 3


def test_a_produce_without_records_tells_a_durable_end(
    world: RustLogWorld, written: RustLogConnection
) -> None:
    said = written.say(type="Produce", topic="demo", partition=0, records=[])
    assert said["base_offset"] == 3
    assert world.disk.broker.log.marks(AT).durable == 3


def test_a_packed_produce_without_records(world: RustLogWorld, written: RustLogConnection) -> None:
    assert written.ask(produce("demo", 0))[1:9] == struct.pack(">Q", 3)
    assert world.disk.broker.log.marks(AT).durable == 3


def test_a_topic_deleted_meanwhile(world: RustLogWorld, written: RustLogConnection) -> None:
    before = len(written.line.frames())
    written.feed(describe("demo") + produce("demo", 0))
    world.disk.store.delete(AT)
    written.run()
    answers = written.line.frames()[before:]
    assert [answer[0] for answer in answers] == [0xFE, 0xFE]
    with pytest.raises(BrokerError):
        world.disk.broker.log.marks(AT)


def test_records_deleted_while_they_are_read(
    world: RustLogWorld, peer: RustLogConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulator, seed 701334: the answer was an error of the wrong offset."""
    peer.ask(create("demo", 1))
    for _ in range(3):
        peer.ask(produce("demo", 0, b"x"))
    log = world.disk.broker.log
    reading: Later[Opened] = Later()
    monkeypatch.setattr(log, "open", lambda *_, **__: reading)
    peer.feed(fetch("demo", 0, 0))
    monkeypatch.undo()
    world.disk.topics.trim(AT, 2)
    world.disk.topics.settle()
    reading.refuse(OffsetOutOfRange("offset 0 outside 2..3 of demo-0", start=2, end=3))
    peer.run()
    assert fetched(peer.line.frames()[-1]) == ([], 0)

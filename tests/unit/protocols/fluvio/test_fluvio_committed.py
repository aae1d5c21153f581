"""Fluvio's clients are told a consumer's offset only when no power cut can take it back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fluvio_world import (
    Client,
    FluvioBroker,
    create_topic,
    produce,
    stream_fetch,
    their_batch,
)
from tests.support.state_files import accept_writes, refuse_writes

from pentalog.broker.port import Committed
from pentalog.broker.state import RETRY_MS
from pentalog.model.types import Partition
from pentalog.protocols.fluvio.codec import Reader, Writer

PRODUCE, FETCH_OFFSETS, STREAM, COMMIT, FORGET, CONSUMERS = 0, 1002, 1003, 1006, 1007, 1008
AT = Partition("demo", 0)
STORAGE, NOT_LEADER = 56, 3001


@pytest.fixture
def local(tmp_path: Path) -> Iterator[FluvioBroker]:
    """With a topic of three records, of which consumer c1 has processed offset 0."""
    made = FluvioBroker(tmp_path, flush_interval_ms=100)
    made.sc().ask(1001, create_topic("demo"))
    made.spu().ask(PRODUCE, produce("demo", their_batch(b"a", b"b", b"c"), isolation=-1))
    commit(made, 0)
    made.runtime.run()
    yield made
    made.close()


def commit(broker: FluvioBroker, offset: int) -> Client:
    spu = broker.spu()
    spu.request(STREAM, stream_fetch("demo", consumer_id="c1"))
    spu.pushed()
    spu.request(COMMIT, bytes(Writer(24).i64(offset).u32(1).out))
    return spu


def hold(broker: FluvioBroker) -> None:
    broker.runtime.held_lanes.add("state")


def answer(broker: FluvioBroker, spu: Client) -> Reader:
    """The answer to the request before: none until the state file accepts writes."""
    assert spu.pushed() == [], "a power cut could bring 0 back"
    broker.runtime.release()
    ((_, found),) = spu.pushed()
    return found


def consumers(reader: Reader) -> tuple[int, list[tuple[str, int]]]:
    def entry() -> tuple[str, int]:
        name, _, _, offset = reader.text(), reader.text(), reader.u32(), reader.i64()
        reader.u64()
        return name, offset

    found = reader.i16(), reader.many(entry)
    reader.finish()
    return found


def ask_start(spu: Client) -> None:
    """FetchOffsets of the only version that names a consumer."""
    body = Writer(23).u32(1).text("demo")
    body.many((0,), body.u32)
    spu.request(FETCH_OFFSETS, bytes(body.option_text("c1").out), version=23)


def started(reader: Reader) -> tuple[int, int, int]:
    """Error, start and end of the one partition."""
    assert (reader.u32(), reader.text(), reader.u32()) == (1, "demo", 1)
    error, _, start, end = reader.i16(), reader.u32(), reader.i64(), reader.i64()
    return error, start, end


@pytest.mark.parametrize("chosen", [False, True])
def test_consumer_offsets(local: FluvioBroker, chosen: bool) -> None:
    asked = bytes(Writer(24).u8(1).u8(1).text("demo").u32(0).option_text("c1").out)
    hold(local)
    committing, spu = commit(local, 1), local.spu()
    spu.request(CONSUMERS, asked if chosen else b"\0")
    assert consumers(answer(local, spu)) == (0, [("c1", 1)])
    ((_, committed),) = committing.pushed()
    assert (committed.i64(), committed.i16()) == (1, 0)


def test_offsets_of_another_consumer_are_told_at_once(local: FluvioBroker) -> None:
    hold(local)
    commit(local, 1)
    asked = bytes(Writer(24).u8(1).u8(0).option_text("c2").out)
    assert consumers(local.spu().ask(CONSUMERS, asked)) == (0, [])


def test_the_start_of_a_consumer(local: FluvioBroker) -> None:
    hold(local)
    commit(local, 1)
    spu = local.spu()
    ask_start(spu)
    assert started(answer(local, spu)) == (0, 2, 3)


def test_a_topic_deleted_meanwhile(local: FluvioBroker) -> None:
    hold(local)
    local.groups.offsets.forget("c1")
    spu = local.spu()
    ask_start(spu)
    local.store.delete(AT)
    assert started(answer(local, spu)) == (NOT_LEADER, 0, 0)


def test_deleting_twice(local: FluvioBroker) -> None:
    """The second deletion finds nothing, which is no answer before the first is durable."""
    asked = bytes(Writer(24).text("demo").u32(0).text("c1").out)
    hold(local)
    first, second = local.spu(), local.spu()
    first.request(FORGET, asked)
    second.request(FORGET, asked)
    assert first.pushed() == []
    assert answer(local, second).i16() == 0


def test_a_file_that_cannot_be_written(local: FluvioBroker) -> None:
    refuse_writes(local.state)
    commit(local, 1)
    assert consumers(local.spu().ask(CONSUMERS, b"\0")) == (STORAGE, [])
    spu = local.spu()
    ask_start(spu)
    ((_, found),) = spu.pushed()
    assert started(found) == (STORAGE, 0, 0)
    accept_writes(local.state)
    local.runtime.advance(RETRY_MS)
    assert consumers(local.spu().ask(CONSUMERS, b"\0")) == (0, [("c1", 1)])


def test_the_least_offset_that_others_commit_is_told(local: FluvioBroker) -> None:
    least = -1 << 63
    local.groups.offsets.commit("c1", {AT: Committed(least)})
    local.runtime.run()
    assert consumers(local.spu().ask(CONSUMERS, b"\0")) == (0, [("c1", least)])


def test_a_consumer_id_has_its_limit(local: FluvioBroker) -> None:
    spu = local.spu()
    spu.request(STREAM, stream_fetch("demo", 3, consumer_id="x" * 1_000))
    assert spu.pushed() == []
    spu.request(STREAM, stream_fetch("demo", 3, consumer_id="x" * 1_001))
    ((_, frame),) = spu.pushed()
    assert (frame.text(), frame.u32(), frame.u32(), frame.i16()) == ("demo", 0, 0, 2)
    assert "accepted are 1000" in frame.text()

"""What any protocol acknowledged is in the answer to every later request of Fluvio."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fluvio_world import (
    FluvioBroker,
    ad_hoc,
    chain,
    create_topic,
    produce,
    read_records,
    read_streamed,
    stream_fetch,
    their_batch,
)
from wat_modules import module

from pentalog.model.types import Partition
from pentalog.protocols.fluvio.codec import Reader, Writer

PRODUCE, FETCH, FETCH_OFFSETS, STREAM = 0, 1, 1002, 1003
AT = Partition("demo", 0)
UNCOMMITTED, COMMITTED = 0, 1


@pytest.fixture
def local(tmp_path: Path) -> Iterator[FluvioBroker]:
    """With a topic of three records that were acknowledged, none of them durable."""
    made = FluvioBroker(tmp_path, flush_interval_ms=100)
    made.sc().ask(1001, create_topic("demo"))
    write(made, b"x", b"a", b"b")
    yield made
    made.close()


def write(broker: FluvioBroker, *values: bytes) -> None:
    spu = broker.spu()
    spu.request(
        PRODUCE, produce("demo", their_batch(*values, timestamp_ms=broker.runtime.now_ms()))
    )
    assert len(spu.frames()) == 1, "answered in the turn of the request"
    marks = broker.broker.log.marks(AT)
    assert marks.durable < marks.end


def fetch(offset: int, *, isolation: int, wait_ms: int = 0) -> bytes:
    body = Writer(24).i32(wait_ms).i32(1).i32(1 << 20).u8(isolation).u32(1).text("demo").u32(1)
    return bytes(body.u32(0).i32(-1).i64(offset).i64(0).i32(1 << 20).u32(0).out)


def values(answer: Reader) -> list[bytes]:
    answer.i32(), answer.i16(), answer.i32(), answer.u32(), answer.text(), answer.u32()
    answer.u32(), answer.i16(), answer.i64(), answer.i64(), answer.i64(), answer.u8()
    return [value for _, _, value in read_records(answer.bytes_())]


@pytest.mark.parametrize("wait_ms", [0, 1])
@pytest.mark.parametrize(("offset", "found"), [(0, [b"x", b"a", b"b"]), (2, [b"b"]), (3, [])])
def test_fetch_of_committed_records(
    local: FluvioBroker, offset: int, found: list[bytes], wait_ms: int
) -> None:
    spu = local.spu()
    number = spu.request(FETCH, fetch(offset, isolation=COMMITTED, wait_ms=wait_ms))
    local.runtime.time_ms += 1
    local.runtime.advance(0)
    ((correlation, answer),) = spu.pushed()
    assert correlation == number
    assert values(answer) == found


def test_fetch_of_everything_written_waits_for_nothing(local: FluvioBroker) -> None:
    spu = local.spu()
    spu.request(FETCH, fetch(1, isolation=UNCOMMITTED))
    ((_, body),) = spu.frames()
    assert values(Reader(memoryview(body), 0, len(body), 24)) == [b"a", b"b"]
    assert local.broker.log.marks(AT).durable == 0


def test_the_end_that_is_told_is_durable(local: FluvioBroker) -> None:
    spu = local.spu()
    body = Writer(24).u32(1).text("demo")
    body.many((0,), body.u32)
    spu.request(FETCH_OFFSETS, bytes(body.out))
    assert spu.frames() == []
    ((_, answer),) = spu.pushed()
    assert (answer.u32(), answer.text(), answer.u32()) == (1, "demo", 1)
    assert (answer.i16(), answer.u32(), answer.i64(), answer.i64()) == (0, 0, 0, 3)
    assert local.broker.log.marks(AT).durable == 3


def test_a_topic_deleted_meanwhile_has_no_end(local: FluvioBroker) -> None:
    spu = local.spu()
    body = Writer(24).u32(1).text("demo")
    body.many((0,), body.u32)
    spu.request(FETCH_OFFSETS, bytes(body.out))
    local.store.delete(AT)
    ((_, answer),) = spu.pushed()
    assert (answer.u32(), answer.text(), answer.u32()) == (1, "demo", 1)
    assert (answer.i16(), answer.u32(), answer.i64(), answer.i64()) == (3001, 0, 0, 0)


def test_a_committed_stream_begins_with_what_was_acknowledged(local: FluvioBroker) -> None:
    spu = local.spu()
    spu.request(STREAM, stream_fetch("demo", isolation=COMMITTED))
    ((_, frame),) = spu.pushed()
    assert [value for _, _, value in read_streamed(frame).records] == [b"x", b"a", b"b"]


def test_looking_back_by_age(local: FluvioBroker) -> None:
    """This module looks for the letter that the last of the older records begins with."""
    link = ad_hoc(module("filter"), lookback=1, lookback_s=60)
    spu = local.spu()
    spu.request(STREAM, stream_fetch("demo", 3, modules=chain(link)))
    assert spu.pushed() == []
    local.spu().ask(PRODUCE, produce("demo", their_batch(b"apple", b"banana")))
    ((_, frame),) = spu.pushed()
    assert [value for _, _, value in read_streamed(frame).records] == [b"banana"]

"""Slices opened for protocols that look inside batches."""

from __future__ import annotations

import logging

import pytest
from tests.support.runtimes import SteppedRuntime

from pentalog.broker.opening import LOOKED_AT_MAX, OPENED_COST, Openings
from pentalog.broker.port import Opened
from pentalog.kernels import stamp
from pentalog.metrics import Metrics
from pentalog.model import batch, compression
from pentalog.model.types import Aborted, FilePiece, Marks, Partition, Record, Slice

MARKS = Marks(0, 100, 100, 100)
AT = Partition("events", 0)


class Bench:
    def __init__(self) -> None:
        self.runtime = SteppedRuntime()
        self.metrics = Metrics()
        self.openings = Openings(self.runtime, self.metrics)

    def open(self, found: Slice, *, bytes_max: int, offset: int = 0) -> Opened:
        later = self.openings.open(AT, offset, found, bytes_max=bytes_max, read_piece=no_file)
        self.runtime.step()
        return later.value


@pytest.fixture
def bench() -> Bench:
    return Bench()


def stored(offset: int, *values: bytes, codec: int = 0, producer_id: int = -1) -> bytearray:
    built = batch.build(
        [Record(value) for value in values],
        timestamp_ms=1,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        transactional=producer_id >= 0,
    )
    stamp(built, 0, len(built), offset, 0)
    return built


def marker(offset: int, producer_id: int, *, commit: bool) -> bytearray:
    built = batch.build_marker(
        commit=commit, producer_id=producer_id, producer_epoch=0, timestamp_ms=1
    )
    stamp(built, 0, len(built), offset, 0)
    return built


def slice_of(*batches: bytearray, next_offset: int, aborted: tuple[Aborted, ...] = ()) -> Slice:
    data = b"".join(batches)
    return Slice((memoryview(data),), len(data), MARKS, next_offset, aborted)


def no_file(_piece: FilePiece) -> bytes:
    raise AssertionError("no file was given")


def values_of(data: bytes | bytearray | memoryview) -> list[tuple[int, bytes | None]]:
    found, position = [], 0
    while position < len(data):
        header = batch.batch_header(data, position)
        assert not header.attributes & batch.CODEC_MASK
        records = batch.records_of(data, position, bytes_max=1 << 20)
        found += [(offset, record.value) for offset, record in records]
        position += header.size
    return found


def test_plain_batches_come_as_they_lie(bench: Bench) -> None:
    plain = stored(5, b"a", b"b") + stored(7, b"c")
    opened = bench.open(slice_of(plain, next_offset=8), bytes_max=10)
    assert bytes(opened.batches) == bytes(plain)
    assert opened.next_offset == 8


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_batches_come_open(bench: Bench, codec: int) -> None:
    found = slice_of(stored(5, b"a" * 99, b"b", codec=codec), stored(7, b"c"), next_offset=8)
    opened = bench.open(found, bytes_max=1 << 20)
    assert values_of(opened.batches) == [(5, b"a" * 99), (6, b"b"), (7, b"c")]
    assert opened.next_offset == 8


def test_what_opens_larger_than_asked_ends_the_slice(bench: Bench) -> None:
    large = b"a" * 5000
    found = slice_of(stored(5, large, codec=1), stored(6, large, codec=1), next_offset=7)
    opened = bench.open(found, bytes_max=6000)
    assert values_of(opened.batches) == [(5, large)]
    assert opened.next_offset == 6


def test_aborted_and_control_batches_stay_hidden(bench: Bench) -> None:
    found = slice_of(
        stored(0, b"seen", producer_id=1),
        stored(1, b"aborted", producer_id=2),
        marker(2, 2, commit=False),
        stored(3, b"again", producer_id=2),
        marker(4, 2, commit=True),
        marker(5, 1, commit=True),
        next_offset=6,
        aborted=(Aborted(2, 1),),
    )
    opened = bench.open(found, bytes_max=1 << 20)
    assert values_of(opened.batches) == [(0, b"seen"), (3, b"again")]
    assert opened.next_offset == 6


def test_a_slice_of_hidden_batches_moves_on_with_nothing(bench: Bench) -> None:
    opened = bench.open(slice_of(marker(4, 2, commit=True), next_offset=5), bytes_max=9)
    assert bytes(opened.batches) == b""
    assert opened.next_offset == 5


def test_a_batch_that_cannot_be_opened_is_skipped(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    broken = stored(6, b"b" * 500, codec=1)
    broken[batch.HEADER_BYTES + 12 : batch.HEADER_BYTES + 20] = bytes(8)
    malformed = stored(7, b"x", b"y")
    malformed[batch.HEADER_BYTES] = 0x7E
    found = slice_of(stored(5, b"a"), broken, malformed, stored(9, b"c"), next_offset=10)
    with caplog.at_level(logging.ERROR, logger="pentalog.log"):
        opened = bench.open(found, bytes_max=1 << 20)
    assert values_of(opened.batches) == [(5, b"a"), (9, b"c")]
    assert opened.next_offset == 10
    assert bench.metrics.unreadable_batches == 2
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "offsets 6..6 cannot be read and are skipped: the batch says it is compressed with gzip, "
        "but cannot be decompressed"
    ], "what follows within a minute is counted only"
    nothing = bench.open(slice_of(broken, next_offset=7), bytes_max=1 << 20)
    assert (bytes(nothing.batches), nothing.next_offset) == (b"", 7)
    assert bench.metrics.unreadable_batches == 3


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_large_batch_comes_in_parts_and_from_a_lane(bench: Bench, codec: int) -> None:
    values = [b"%06d" % number + bytes(1000) for number in range(1000)]
    found = slice_of(stored(50, *values, codec=codec), next_offset=1050)
    offset, seen, parts = 50, [], 0
    while offset < 1050:
        later = bench.openings.open(AT, offset, found, bytes_max=100_000, read_piece=no_file)
        assert not later.ready, "a megabyte is not opened on the loop"
        bench.runtime.step()
        part = later.value
        assert len(part.batches) <= 100_000 + batch.HEADER_BYTES
        seen += values_of(part.batches)
        assert part.next_offset > offset
        offset = part.next_offset
        parts += 1
    assert seen == [(50 + number, value) for number, value in enumerate(values)]
    assert parts == 11
    one = bench.open(found, bytes_max=1, offset=777)
    assert values_of(one.batches) == [(777, values[727])], "at least one record, from the offset on"


def test_much_that_unpacks_to_more_than_a_batch_may_hold_is_skipped(bench: Bench) -> None:
    bomb = stored(3, b"a", codec=4)
    bomb[batch.HEADER_BYTES :] = compression.compress(4, bytes(300 << 20))
    bomb[8:12] = (len(bomb) - 12).to_bytes(4, "big")
    opened = bench.open(slice_of(bomb, stored(4, b"b"), next_offset=5), bytes_max=1 << 20)
    assert values_of(opened.batches) == [(4, b"b")]
    assert opened.next_offset == 5


def test_many_small_batches_come_in_parts(bench: Bench) -> None:
    """A read may hold a quarter of a million of them: to open each takes longer than a turn."""
    count = LOOKED_AT_MAX // OPENED_COST + 1
    batches = [stored(0, b"a", codec=1), *(stored(offset, b"") for offset in range(1, count))]
    found = slice_of(*batches, next_offset=count)
    opened = bench.open(found, bytes_max=1 << 20)
    assert [offset for offset, _ in values_of(opened.batches)] == list(range(count - 1))
    assert opened.next_offset == count - 1


def test_many_hidden_batches_are_skipped_in_parts(bench: Bench) -> None:
    count = LOOKED_AT_MAX + 1
    batches = [stored(offset, b"", producer_id=2) for offset in range(count)]
    found = slice_of(*batches, next_offset=count, aborted=(Aborted(2, 0),))
    opened = bench.open(found, bytes_max=1 << 20)
    assert not opened.batches
    assert opened.next_offset == LOOKED_AT_MAX

"""Tombstones in compacted topics: how long they stay, and what is written to say so."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.compactions import COMPACTED, compact, fill, newest
from tests.support.logs import AT, LogBench

from pentalog import kernels
from pentalog.kernels import BatchHeader
from pentalog.log import rewriting
from pentalog.model import batch
from pentalog.model.batch import DELETE_HORIZON
from pentalog.model.compression import CODECS
from pentalog.model.settings import TimestampType
from pentalog.model.types import Record

MINUTE_MS = 60_000


def compact_after(bench: LogBench, delay_ms: int) -> None:
    """One more compaction, for which there must be something new."""
    bench.runtime.advance(delay_ms)
    fill(bench, [(b"other", b"%d" % bench.runtime.now_ms())])
    bench.store.get(AT).roll()
    assert compact(bench)


def headers_of(bench: LogBench) -> list[BatchHeader]:
    """The batches of all sealed segments."""
    found = []
    for segment in bench.store.get(AT).segments[:-1]:
        data = segment.path(".log").read_bytes()
        position = 0
        while position < len(data):
            found.append(kernels.batch_header(data, position))
            position += found[-1].size
    return found


@pytest.mark.parametrize("age_ms", [0, 365 * 24 * 60 * MINUTE_MS], ids=["dated", "backdated"])
@pytest.mark.parametrize("restart", [False, True])
def test_tombstones_stay_for_their_time_and_never_bring_back_what_they_deleted(
    tmp_path: Path, age_ms: int, restart: bool
) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    settings = {**COMPACTED, "delete_retention_ms": MINUTE_MS}
    partition = bench.partition(**settings)
    written_ms = bench.runtime.now_ms() - age_ms
    history = [(b"gone", b"value"), (b"stays", b"value"), (b"gone", None)]
    fill(bench, history, timestamp_ms=written_ms)
    partition.roll()
    bench.runtime.advance(10 * MINUTE_MS)
    # Its time counts from the first compaction that meets it, however old it is by then.
    assert compact(bench)
    assert newest(bench) == {b"gone": None, b"stays": b"value"}
    horizon_ms = bench.runtime.now_ms() + MINUTE_MS
    if restart:
        bench.crash()
        bench = LogBench(tmp_path, flush_interval_ms=0)
        bench.runtime.advance(10 * MINUTE_MS)
        bench.partition(**settings)
    compact_after(bench, MINUTE_MS - 1)
    assert newest(bench).keys() == {b"gone", b"stays", b"other"}
    times = {r.key: r.timestamp_ms for _, r in bench.read() if r.key != b"other"}
    assert times == {b"gone": written_ms, b"stays": written_ms}
    horizons = [h.base_timestamp for h in headers_of(bench) if h.attributes & DELETE_HORIZON]
    assert horizons == [horizon_ms]
    compact_after(bench, 1)
    assert newest(bench).keys() == {b"stays", b"other"}


@pytest.mark.parametrize("timestamp_type", TimestampType)
@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
def test_a_delete_horizon_leaves_every_time_as_it_was(
    tmp_path: Path, codec: int, timestamp_type: TimestampType
) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(**COMPACTED, timestamp_type=timestamp_type)
    now = bench.runtime.now_ms()
    values = [b"v", None, b"w", None]
    times = [now, now - 10_000_000, now + 77, now - 5]
    records = [
        Record(value, b"k%d" % number, (("h", b"x"),), time)
        for number, (value, time) in enumerate(zip(values, times, strict=True))
    ]
    data = batch.build(
        records, timestamp_ms=now, codec=codec, producer_id=8, producer_epoch=2, base_sequence=0
    )
    bench.log.append(AT, memoryview(data))
    partition.roll()
    (before,) = headers_of(bench)
    expected = bench.read()
    assert compact(bench)
    assert bench.read() == expected
    (after,) = headers_of(bench)
    assert after.attributes == before.attributes | DELETE_HORIZON
    assert after.base_timestamp == now + partition.settings.delete_retention_ms
    same = ("base_offset", "last_offset_delta", "max_timestamp", "producer_id", "base_sequence")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    written = partition.segments[0].path(".log").read_bytes()
    compact_after(bench, MINUTE_MS)
    assert partition.segments[0].path(".log").read_bytes().startswith(written)
    assert bench.log.locate(AT, now - 20_000_000).value == (0, expected[0][1].timestamp_ms)


def test_tombstones_that_are_to_stay_for_ever_do(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(**COMPACTED, delete_retention_ms=(1 << 63) - 1)
    fill(bench, [(b"gone", None)])
    partition.roll()
    assert compact(bench)
    compact_after(bench, MINUTE_MS)
    assert bench.values()[0] is None
    assert not any(header.attributes & DELETE_HORIZON for header in headers_of(bench))


def test_a_segment_without_room_for_a_horizon_keeps_its_tombstones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(**COMPACTED)
    fill(bench, [(b"key-%d" % number, None) for number in range(10)])
    partition.roll()
    room = partition.segments[0].size + 8
    monkeypatch.setattr(rewriting, "_SEGMENT_BYTES_MAX", room)
    assert compact(bench)
    assert partition.segments[0].size <= room
    marked = [bool(header.attributes & DELETE_HORIZON) for header in headers_of(bench)]
    assert marked == sorted(marked, reverse=True)
    assert 0 < sum(marked) < 10
    assert len(bench.values()) == 10

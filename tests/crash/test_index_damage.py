"""Index files that a power cut left old, or that were damaged, lose and hide no record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.disks import DiskBench, cut_power, find_inode
from tests.support.logs import AT, LogBench

from pentalog import kernels
from pentalog.log.retention import apply_retention
from pentalog.model.types import Horizon

DAY_MS = 24 * 3600 * 1000
SETTINGS = {"segment_bytes": 20_000, "retention_ms": 3 * DAY_MS}
INDEX = "events-0/00000000000000000000.index"
TIME_INDEX = "events-0/00000000000000000000.timeindex"


def write_old(bench: DiskBench, now_ms: int) -> None:
    """Records of four days ago, more than one index entry of them."""
    for number in range(30):
        bench.settled(b"old %d" % number + b"x" * 500, timestamp_ms=now_ms - 4 * DAY_MS)


def slices(bench: LogBench | DiskBench, bytes_max: int) -> Iterator[tuple[int, int, int]]:
    """(offset, next offset, batches) of each step of a reader inside the broker."""
    offset = 0
    while True:
        opened = bench.log.open(AT, offset, bytes_max=bytes_max, horizon=Horizon.STABLE)
        bench.runtime.step()
        found = opened.value
        if found.next_offset <= offset:
            return
        position = batches = 0
        while position < len(found.batches):
            position += kernels.batch_header(found.batches, position).size
            batches += 1
        yield offset, found.next_offset, batches
        offset = found.next_offset


@pytest.mark.parametrize("first", ["kill", "cut"])
@pytest.mark.parametrize("second", ["stop", "kill"])
def test_retention_keeps_a_new_record_that_no_index_entry_names(first: str, second: str) -> None:
    bench = DiskBench()
    bench.partition(**SETTINGS)
    now_ms = bench.runtime.now_ms()
    write_old(bench, now_ms)
    fresh = bench.settled(b"fresh", timestamp_ms=now_ms).base_offset
    bench.store.get(AT).roll()
    bench.settled(b"next segment", timestamp_ms=now_ms)
    for ending in (first, second):
        bench = bench.restart(ending)
        bench.partition(**SETTINGS)
        partition = bench.store.get(AT)
        assert partition.segments[0].newest_timestamp == now_ms
        assert apply_retention(partition, now_ms) == 0
        assert fresh in bench.values(partition.start_offset)


def test_retention_keeps_a_new_record_if_the_index_of_a_sealed_segment_is_old() -> None:
    bench = DiskBench()
    bench.partition(**SETTINGS)
    now_ms = bench.runtime.now_ms()
    write_old(bench, now_ms)
    bench.runtime.advance(6_000)  # a checkpoint writes the indexes, the system writes them back
    find_inode(bench.disk, TIME_INDEX).sync()
    fresh = bench.settled(b"fresh", timestamp_ms=now_ms).base_offset
    bench.runtime.advance(6_000)  # the recovery point is behind it
    bench.append(b"y" * 6_000, timestamp_ms=now_ms)  # begins the next segment
    bench.runtime.step()
    bench.crash()
    cut_power(bench.disk, kept=lambda path: not path.endswith("index"))
    bench = bench.again()
    bench.partition(**SETTINGS)
    partition = bench.store.get(AT)
    assert apply_retention(partition, now_ms) == 0
    assert fresh in bench.values(partition.start_offset)


@pytest.mark.parametrize("bit", [30, 35, 40])
def test_retention_keeps_a_new_record_if_the_time_index_is_damaged(bit: int) -> None:
    bench = DiskBench()
    bench.partition(**SETTINGS)
    now_ms = bench.runtime.now_ms()
    write_old(bench, now_ms)
    bench.settled(b"fresh", timestamp_ms=now_ms)
    bench.store.get(AT).roll()
    bench.settled(b"next segment", timestamp_ms=now_ms)
    bench = bench.restart("stop")
    bench.partition(**SETTINGS)
    times = find_inode(bench.disk, TIME_INDEX).cache
    assert now_ms >> bit & 1
    times[len(times) - 5 - bit // 8] &= ~(1 << bit % 8)  # the newest time, now an older one
    partition = bench.store.get(AT)
    assert apply_retention(partition, now_ms) == 0
    assert partition.segments[0].newest_timestamp == now_ms


@pytest.mark.parametrize("bytes_max", [6_000, 10_000, 15_000, 30_000])
def test_an_old_index_of_the_active_segment_misleads_no_reader(bytes_max: int) -> None:
    """Its entries are of records that a first power cut took; a second one brings them back."""
    bench = DiskBench()
    bench.partition()
    for number in range(5):
        bench.settled(b"%d" % number + b"\0" * 900)
    bench.runtime.held_lanes.add("sync")
    for number in range(40):
        bench.append(b"lost %d" % number + b"\0" * 900)
    bench.store._checkpoint(bench.store.get(AT))
    for path in (INDEX, TIME_INDEX):
        find_inode(bench.disk, path).sync()
    bench = bench.restart("cut")
    bench.partition()
    assert bench.store.get(AT).end_offset == 5
    for number in range(70):
        bench.settled(b"%d" % number + b"\0" * 813)
    end = bench.store.get(AT).end_offset
    bench.stop()
    cut_power(bench.disk)
    bench = bench.again()
    assert bench.store.stopped_cleanly
    steps = list(slices(bench, bytes_max))
    assert steps[-1][1] == end
    assert sum(batches for _, _, batches in steps) == end


@pytest.mark.parametrize("bit", [0, 5, 9])
@pytest.mark.parametrize("bytes_max", [5_000, 9_000, 20_000])
def test_a_damaged_position_misleads_no_reader(tmp_path: Path, bytes_max: int, bit: int) -> None:
    bench = LogBench(tmp_path / "data")
    bench.partition()
    for number in range(60):
        bench.settled(b"%d:" % number + b"\0" * 900)
    bench.store.get(AT).roll()
    bench.settled(b"last")
    bench.store.close()
    path = tmp_path / "data" / INDEX
    sound = path.read_bytes()
    for entry in range(len(sound) // 8):
        broken = bytearray(sound)
        broken[entry * 8 + 7 - bit // 8] ^= 1 << bit % 8
        path.write_bytes(broken)
        bench = LogBench(tmp_path / "data")
        steps = list(slices(bench, bytes_max))
        assert steps[-1][1] == 61, steps
        assert sum(batches for _, _, batches in steps) == 61, steps
        bench.store.close()


@pytest.mark.parametrize("what", ["position", "offset", "all positions"])
def test_a_damaged_index_hides_no_record(tmp_path: Path, what: str) -> None:
    """More than one window that is inspected at once."""
    bench = LogBench(tmp_path / "data")
    bench.partition()
    written = {bench.append(b"%d" % number + bytes(8_000)).base_offset for number in range(1200)}
    bench.store.get(AT).roll()
    bench.append(b"last")
    bench.store.close()
    path = tmp_path / "data" / INDEX
    sound = path.read_bytes()
    data = bytearray(sound)
    positions = {at: int.from_bytes(data[at + 4 : at + 8], "big") for at in range(0, len(data), 8)}
    second = next(at for at, position in positions.items() if position >= 4 << 20)
    if what == "position":
        data[second + 7] ^= 1
    elif what == "offset":
        data[second + 3] ^= 4
    else:
        for at, position in positions.items():
            data[at + 4 : at + 8] = (position + 8).to_bytes(4, "big")
    path.write_bytes(data)
    bench = LogBench(tmp_path / "data")
    assert written <= bench.values().keys()
    if what == "all positions":
        # Found wrong once, the index is rebuilt and not tried entry by entry at every read.
        bench.store.get(AT).segments[0].find(1_000, patient=True)
        assert path.read_bytes() == sound


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize("kept", [None, 0.0, 0.5], ids=["missing", "empty", "half"])
def test_a_segment_that_lost_batches_is_reported(
    tmp_path: Path, ending: str, kept: float | None
) -> None:
    bench = LogBench(tmp_path / "data")
    bench.partition(segment_bytes=2_000)
    for number in range(12):
        bench.settled(b"%d:" % number + b"x" * 600)
    bench.runtime.advance(11_000)
    base = bench.store.get(AT).segments[1].base_offset
    if ending == "stop":
        bench.store.close()
    else:
        bench.crash()
    path = tmp_path / f"data/events-0/{base:020d}.log"
    if kept is None:
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * kept)])
    bench = LogBench(tmp_path / "data")
    assert len(bench.values()) < 12
    assert bench.metrics.damaged_batches == 1

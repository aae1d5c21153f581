"""Old segments go: by age, by size, by trimming; and never too early."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.logs import AT, LogBench

from pentalog.log.files import RealFiles
from pentalog.log.housekeeping import Housekeeping
from pentalog.log.partition import PartitionLog
from pentalog.log.retention import Lease, apply_retention
from pentalog.model.errors import OffsetOutOfRange
from pentalog.model.settings import LogSettings
from pentalog.model.types import Partition

HOUR_MS = 3600 * 1000
MINUTE_MS = 60_000


def bench_with(tmp_path: Path, *, values: int = 60, **settings: Any) -> LogBench:
    """Records one minute apart, about ten to a segment, all durable."""
    bench = LogBench(tmp_path, flush_interval_ms=0)
    bench.partition(segment_bytes=2048, **settings)
    now = bench.runtime.now_ms()
    for number in range(values):
        bench.append(b"%03d" % number * 45, timestamp_ms=now - (values - number) * 60_000)
    return bench


def test_segments_whose_newest_record_is_too_old_go(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, retention_ms=30 * 60_000)
    partition = bench.store.get(AT)
    now = bench.runtime.now_ms()
    count = len(partition.segments)
    dropped = apply_retention(partition, now)
    assert 0 < dropped < count
    assert partition.start_offset == partition.segments[0].base_offset
    assert partition.segments[0].newest_timestamp >= now - 30 * 60_000
    # Not one more than had to go: the record behind the last one dropped is young enough.
    assert partition.start_offset <= 30
    assert list(bench.values(partition.start_offset)) == list(range(partition.start_offset, 60))
    assert apply_retention(partition, now) == 0


def test_files_stay_for_their_readers_and_go_after_the_delay(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, retention_ms=30 * 60_000, file_delete_delay_ms=5000)
    partition = bench.store.get(AT)
    dropped = apply_retention(partition, bench.runtime.now_ms())
    assert len(list(partition.directory.glob("*.log.deleted"))) == dropped
    bench.runtime.advance(4000)
    assert len(list(partition.directory.glob("*.log.deleted"))) == dropped
    bench.runtime.advance(2000)
    assert not list(partition.directory.glob("*.deleted"))


def test_the_oldest_go_while_the_rest_is_large_enough(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, retention_ms=-1, retention_bytes=5000)
    partition = bench.store.get(AT)
    sizes = [segment.size for segment in partition.segments]
    dropped = apply_retention(partition, bench.runtime.now_ms())
    assert dropped > 0
    assert partition.size_bytes == sum(sizes[dropped:]) >= 5000
    assert partition.size_bytes - partition.segments[0].size < 5000


def test_without_limits_nothing_goes(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, retention_ms=-1, retention_bytes=-1)
    partition = bench.store.get(AT)
    assert apply_retention(partition, bench.runtime.now_ms() + 10**12) == 0


def test_an_expired_active_segment_is_rolled_and_goes_too(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, retention_ms=HOUR_MS)
    partition = bench.store.get(AT)
    assert partition.active.size
    apply_retention(partition, bench.runtime.now_ms() + 2 * HOUR_MS)
    assert partition.marks == (60, 60, 60, 60)
    assert len(partition.segments) == 1
    assert bench.append(b"next").base_offset == 60
    assert list(bench.values(60)) == [60]
    bench.crash()
    again = LogBench(tmp_path)
    assert again.store.get(AT).start_offset == 60
    assert list(again.values(60)) == [60]


def test_nothing_goes_that_is_not_durable(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    partition = bench.partition(segment_bytes=2048, retention_ms=0)
    for number in range(40):
        bench.append(b"%03d" % number * 45)
    late = bench.runtime.now_ms() + HOUR_MS
    assert len(partition.segments) > 2
    assert partition.durable.offset == 0
    assert apply_retention(partition, late) == 0
    bench.runtime.advance(1000)
    assert partition.durable.offset == 40
    assert apply_retention(partition, late) > 2
    assert partition.start_offset == 40


def test_an_open_transaction_holds_its_segments(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(segment_bytes=2048, retention_ms=0)
    for number in range(20):
        bench.append(b"%03d" % number * 45)
    bench.append(b"open", producer_id=4, producer_epoch=0, base_sequence=0, transactional=True)
    for number in range(20):
        bench.append(b"%03d" % number * 45)
    apply_retention(partition, bench.runtime.now_ms() + HOUR_MS)
    assert 0 < partition.start_offset <= 20
    assert bench.values(20)[20] == b"open"


def test_a_compacted_topic_keeps_what_is_old_unless_it_also_deletes(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, values=60, retention_ms=30 * 60_000)
    partition = bench.partition(
        segment_bytes=2048, retention_ms=0, cleanup_compact=True, cleanup_delete=False
    )
    assert apply_retention(partition, bench.runtime.now_ms()) == 0
    partition = bench.partition(
        segment_bytes=2048, retention_ms=30 * 60_000, cleanup_compact=True, cleanup_delete=True
    )
    assert apply_retention(partition, bench.runtime.now_ms()) > 0


def test_what_was_trimmed_goes_whatever_the_policy(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, retention_ms=-1, cleanup_delete=False)
    partition = bench.store.get(AT)
    partition.trim(60)
    bench.store.write_starts()
    assert partition.active.size
    assert apply_retention(partition, bench.runtime.now_ms()) == 1
    assert partition.size_bytes == 0
    assert partition.marks == (60, 60, 60, 60)


def test_what_was_trimmed_stays_until_the_start_is_on_the_disk(tmp_path: Path) -> None:
    """A trim that the disk refuses may be gone after a restart: then all records are needed."""
    bench = bench_with(tmp_path, retention_ms=-1)
    partition = bench.store.get(AT)
    segments = len(partition.segments)
    assert partition.trim(60) == 60
    assert partition.start_offset == 0
    assert apply_retention(partition, bench.runtime.now_ms()) == 0
    assert len(partition.segments) == segments > 2
    bench.crash()
    assert list(LogBench(tmp_path, flush_interval_ms=0).values()) == list(range(60))


class ReluctantFiles(RealFiles):
    """Segments of these base offsets keep their names."""

    kept: Collection[int] = ()

    def rename(self, old: Path, new: Path) -> None:
        if old.suffix == ".log" and int(old.stem) in self.kept:
            raise OSError(errno.ENOSPC, "injected", str(old))
        super().rename(old, new)


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_segment_that_the_disk_does_not_let_go_keeps_those_after_it(
    tmp_path: Path, kept: int
) -> None:
    bench = bench_with(tmp_path, retention_ms=MINUTE_MS)
    bench.files = files = ReluctantFiles()
    partition = bench.store.get(AT)
    for segment in partition.segments:
        segment.files = files
    files.kept = [partition.bases[kept]]
    assert apply_retention(partition, bench.runtime.now_ms()) == kept
    start = files.kept[0]
    assert partition.start_offset == start
    bench.crash()
    bench = LogBench(tmp_path, flush_interval_ms=0)
    assert list(bench.values(start)) == list(range(start, 60))


def test_producer_state_survives_a_crash_before_its_segment_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start drops the segment but must still recognize retries of its batches."""
    bench = LogBench(tmp_path)
    partition = bench.partition(segment_bytes=2048)
    theirs = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    first = bench.settled(b"x" * 2000, **theirs)
    bench.settled(b"y" * 2000)
    partition.trim(1)
    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "advance_start", lambda log, start: None)
        bench.store.write_starts()
    assert partition.bases == [0, 1]
    for _ in range(2):
        bench.crash()
        bench = LogBench(tmp_path)
        assert bench.store.get(AT).bases == [1]
        again = bench.append(b"x" * 2000, **theirs)
        assert (again.duplicate, again.base_offset) == (True, first.base_offset)


def test_records_without_a_time_go_by_that_of_their_file(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(segment_bytes=2048, retention_ms=HOUR_MS)
    for number in range(40):
        bench.append(b"%03d" % number * 45, timestamp_ms=-1)
    now = bench.runtime.now_ms()
    assert partition.segments[0].newest_timestamp == -1
    for segment in partition.segments:
        os.utime(segment.path(".log"), (now / 1000, now / 1000))
    os.utime(partition.segments[0].path(".log"), (now / 1000 - 7200, now / 1000 - 7200))
    assert apply_retention(partition, now) == 1


def test_the_walk_reaches_every_partition_and_comes_back(tmp_path: Path) -> None:
    bench = LogBench(
        tmp_path, flush_interval_ms=0, housekeeping_interval_ms=5_000, retention_interval_ms=5_000
    )
    partitions = [Partition("events", index) for index in range(50)]
    for at in partitions:
        bench.partition(at, segment_bytes=2048, retention_ms=MINUTE_MS)
        bench.append(b"old", at=at)
    house = Housekeeping(bench.store, bench.runtime, bench.config)
    house.start()
    bench.runtime.advance(20_000)
    assert all(bench.store.get(at).start_offset == 0 for at in partitions)
    vain = bench.metrics.retention_walks_in_vain
    assert vain > 0
    size = sum(partition.size_bytes for partition in bench.store.all())
    bench.runtime.advance(2 * MINUTE_MS)
    assert all(bench.store.get(at).start_offset == 1 for at in partitions)
    assert bench.metrics.retention_walks_in_vain > vain
    assert bench.metrics.segments_deleted_bytes == size
    house.stop()
    bench.append(b"new", at=AT)
    bench.runtime.advance(3 * MINUTE_MS)
    assert bench.store.get(AT).start_offset == 1


def test_records_with_old_timestamps_are_not_taken_at_once(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition()
    bench.append(b"from long ago", timestamp_ms=1)
    house = Housekeeping(bench.store, bench.runtime, bench.config)
    house.start()
    bench.runtime.advance(25_000)
    assert partition.start_offset == 0
    bench.runtime.advance(bench.config.housekeeping_interval_ms * 2)
    assert partition.start_offset == 1
    bench.append(b"from long ago", timestamp_ms=1)
    bench.runtime.advance(bench.config.retention_interval_ms // 2)
    assert partition.start_offset == 1
    bench.runtime.advance(bench.config.retention_interval_ms)
    assert partition.start_offset == 2
    house.stop()


def test_one_turn_of_the_walk_leaves_the_rest_for_later(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0, retention_interval_ms=1_000)
    for index in range(50):
        bench.partition(Partition("events", index), retention_ms=0)
        bench.append(b"old", at=Partition("events", index), timestamp_ms=1)
    seen: list[int] = []
    soon = bench.runtime.soon

    def watched(run: Any) -> None:
        seen.append(sum(partition.start_offset for partition in bench.store.all()))
        soon(run)

    bench.runtime.soon = watched  # type: ignore[method-assign]
    house = Housekeeping(bench.store, bench.runtime, bench.config)
    house.start()
    bench.runtime.advance(2000)
    assert seen == [16, 32, 48]
    assert all(partition.start_offset == 1 for partition in bench.store.all())
    house.stop()


def test_silent_producers_are_forgotten(tmp_path: Path) -> None:
    bench = LogBench(
        tmp_path,
        flush_interval_ms=0,
        producer_expiration_ms=MINUTE_MS,
        housekeeping_interval_ms=5_000,
        retention_interval_ms=5_000,
    )
    partition = bench.partition()
    bench.append(b"x", producer_id=5, producer_epoch=0, base_sequence=0)
    house = Housekeeping(bench.store, bench.runtime, bench.config)
    house.start()
    bench.runtime.advance(MINUTE_MS // 2)
    assert partition.producers.get(5) is not None
    bench.runtime.advance(MINUTE_MS)
    assert partition.producers.get(5) is None
    house.stop()


def test_a_new_topic_of_the_same_name_inherits_nothing(tmp_path: Path) -> None:
    bench = bench_with(tmp_path)
    bench.store.get(AT).trim(5)
    bench.store.write_starts()
    bench.store.cleaned_offsets[AT] = 5
    bench.store.write_cleaned_offsets()
    bench.store.delete(AT)
    bench.store.create(AT, uuid4(), LogSettings())
    bench.append(b"fresh")
    bench.crash()
    again = LogBench(tmp_path)
    assert again.store.get(AT).start_offset == 0
    assert again.store.cleaned_offsets == {}
    assert again.values() == {0: b"fresh"}
    with pytest.raises(OffsetOutOfRange):
        again.values(2)


def test_what_somebody_has_a_lease_on_stays(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, retention_ms=10 * MINUTE_MS)
    partition = bench.store.get(AT)
    now = bench.runtime.now_ms()
    assert apply_retention(partition, now, Lease(25, 1 << 30)) > 0
    assert 10 < partition.start_offset <= 25
    assert list(bench.values(partition.start_offset))[-35:] == list(range(25, 60))
    assert partition.leased_bytes == bench.metrics.retention_held_bytes > 0
    assert apply_retention(partition, now, Lease(50, 1 << 30)) > 0
    assert 25 < partition.start_offset <= 50
    assert apply_retention(partition, now) >= 0
    assert bench.metrics.retention_held_bytes == 0
    assert bench.metrics.segments_deleted_unread == 0


def test_a_lease_holds_no_more_than_it_may(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, retention_ms=10 * MINUTE_MS)
    partition = bench.store.get(AT)
    sizes = [segment.size for segment in partition.segments]
    apply_retention(partition, bench.runtime.now_ms(), Lease(0, 2 * max(sizes)))
    assert 0 < partition.leased_bytes <= 2 * max(sizes)
    assert bench.metrics.segments_deleted_unread > 0
    assert partition.start_offset > 0


def test_housekeeping_asks_for_leases(tmp_path: Path) -> None:
    bench = bench_with(tmp_path, retention_ms=HOUR_MS // 2)
    housekeeping = Housekeeping(bench.store, bench.runtime, bench.config)
    housekeeping.find_leases = lambda now_ms: {AT: Lease(5, 1 << 30)}
    housekeeping.start()
    bench.runtime.advance(10 * MINUTE_MS)
    assert bench.store.get(AT).start_offset <= 5
    housekeeping.find_leases = lambda now_ms: {}
    bench.runtime.advance(10 * MINUTE_MS)
    assert bench.store.get(AT).start_offset > 5
    housekeeping.stop()

"""When the flusher syncs what nobody waits for."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path

import pytest
from tests.support.faults import FaultyFiles
from tests.support.logs import LogBench

from pentalog.log.files import Handle
from pentalog.model.errors import BrokerError
from pentalog.model.types import Partition

SLOW, QUICK = Partition("slow", 0), Partition("quick", 0)


@pytest.fixture
def bench(tmp_path: Path) -> LogBench:
    """A topic that is synced after ten seconds, and one that is after 50 ms."""
    bench = LogBench(tmp_path, files=FaultyFiles(), flush_interval_ms=10_000)
    bench.partition(SLOW)
    bench.partition(QUICK, flush_ms=50)
    return bench


def durable(bench: LogBench, at: Partition) -> int:
    return bench.store.get(at).durable.offset


def test_a_short_interval_does_not_wait_for_a_longer_one(bench: LogBench) -> None:
    for written in range(1, 4):
        bench.append(b"value", at=SLOW)
        bench.runtime.advance(10)
        bench.append(b"value", at=QUICK)
        bench.runtime.advance(49)
        assert durable(bench, QUICK) == written - 1
        bench.runtime.advance(1)
        assert durable(bench, QUICK) == written


def test_a_long_interval_is_not_extended_by_a_shorter_one(bench: LogBench) -> None:
    bench.append(b"value", at=SLOW)
    bench.runtime.advance(9_990)
    assert durable(bench, SLOW) == 0
    bench.append(b"value", at=QUICK)  # is due after the other one
    bench.runtime.advance(10)
    assert durable(bench, SLOW) == 1


class CrowdedFiles(FaultyFiles):
    """Sealed segments cannot be opened for a while."""

    code = 0
    refused = 0

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> Handle:
        if self.code and not create and path.suffix == ".log":
            self.refused += 1
            raise OSError(self.code, "injected", str(path))
        return super().open(path, create=create, writable=writable)


def rolled(directory: Path) -> tuple[LogBench, CrowdedFiles]:
    """Two topics with unsynced records, the first in a sealed segment that is not open."""
    files = CrowdedFiles()
    bench = LogBench(directory, files=files, flush_interval_ms=10_000)
    for at in (SLOW, QUICK):
        bench.partition(at)
        bench.append(b"value", at=at)
    partition = bench.store.get(SLOW)
    partition.roll()
    partition.segments[0].release()
    bench.append(b"value", at=SLOW)
    return bench, files


def test_a_lack_of_descriptors_delays_one_partition_and_fails_none(tmp_path: Path) -> None:
    bench, files = rolled(tmp_path)
    files.code = errno.EMFILE
    waiting = [bench.store.get(at) for at in (SLOW, QUICK)]
    answers: list[tuple[Partition, object]] = []

    def told(at: Partition, error: BrokerError | None) -> None:
        answers.append((at, error))

    for partition in waiting:
        partition.settle(partition.end_offset, partial(told, partition.at))
    bench.runtime.advance(3_000)
    assert answers == [(QUICK, None)]
    files.code = 0
    bench.runtime.advance(1_000)
    assert answers == [(QUICK, None), (SLOW, None)]
    assert durable(bench, SLOW) == 2


class CrowdedDirectories(FaultyFiles):
    """Directories cannot be opened to be synced for a while."""

    code = 0

    def sync_directory(self, path: Path) -> None:
        if self.code:
            raise OSError(self.code, "injected", str(path))
        super().sync_directory(path)


@pytest.mark.parametrize("journal", [False, True])
def test_a_lack_of_descriptors_for_directories_fails_nothing(tmp_path: Path, journal: bool) -> None:
    files = CrowdedDirectories()
    bench = LogBench(tmp_path, files=files, flush_interval_ms=10_000)
    bench.partition(QUICK)
    for _ in range(40 if journal else 0):
        bench.settled(b"value", at=QUICK)
    assert bench.store.journal.ready == journal
    partition = bench.partition(SLOW)
    files.code = errno.EMFILE
    answers: list[BrokerError | None] = []
    bench.append(b"value", at=SLOW)
    partition.settle(1, answers.append)
    bench.runtime.advance(3_000)
    assert answers == []
    files.code = 0
    bench.runtime.advance(1_000)
    assert answers == [None]
    bench.settled(b"value", at=SLOW)
    bench.crash()
    assert len(LogBench(tmp_path).values(at=SLOW)) == 2


def test_however_often_it_is_asked_a_partition_is_tried_once_a_second(tmp_path: Path) -> None:
    bench, files = rolled(tmp_path)
    files.code = errno.EMFILE
    partition = bench.store.get(SLOW)
    answers: list[BrokerError | None] = []
    for _ in range(100):
        bench.append(b"value", at=SLOW)
        partition.settle(partition.end_offset, answers.append)
        bench.runtime.advance(50)
    assert files.refused <= 6, "in five seconds"
    assert not answers
    files.code = 0
    bench.runtime.advance(1_000)
    assert answers == [None] * 100
    assert not bench.store.flusher._reopening


def test_a_partition_deleted_while_it_waits_holds_up_no_checkpoint(tmp_path: Path) -> None:
    bench, files = rolled(tmp_path)
    files.code = errno.EMFILE
    partition = bench.store.get(SLOW)
    told: list[Partition] = []
    bench.store.flusher._sync(partition, lambda synced: told.append(synced.at))
    bench.store.delete(SLOW)
    bench.runtime.advance(1_000)
    assert told == [SLOW]


def test_a_segment_that_has_gone_fails_its_partition_only(tmp_path: Path) -> None:
    bench, files = rolled(tmp_path)
    files.code = errno.ENOENT
    for at in (SLOW, QUICK):
        bench.store.flusher.request(bench.store.get(at))
    bench.runtime.step()
    assert bench.store.get(SLOW).failed
    assert durable(bench, QUICK) == 1


def test_what_is_written_after_a_sync_is_synced_as_well(bench: LogBench) -> None:
    bench.append(b"value", at=QUICK)
    bench.runtime.advance(50)
    bench.append(b"value", at=SLOW)
    bench.runtime.advance(9_999)
    assert durable(bench, SLOW) == 0
    bench.runtime.advance(1)
    assert durable(bench, SLOW) == 1

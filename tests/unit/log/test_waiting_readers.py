"""Readers that wait, and a disk that fails when one of them is looked after."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest
from tests.support.logs import AT, LogBench

from pentalog.log.files import Handle, RealFiles
from pentalog.model.types import Ack, Horizon, Partition

OTHER = Partition("other", 0)


class UnreadableIndexes(RealFiles):
    """From `broken` on the disk cannot read indexes."""

    broken = False

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> Handle:
        if self.broken and path.suffix == ".index":
            raise OSError(errno.EIO, "injected", str(path))
        return super().open(path, create=create, writable=writable)


@pytest.fixture
def files() -> UnreadableIndexes:
    return UnreadableIndexes()


@pytest.fixture
def bench(tmp_path: Path, files: UnreadableIndexes) -> LogBench:
    """A reader waits at the start of a partition of several segments for more than there is."""
    bench = LogBench(tmp_path, files=files)
    partition = bench.partition(segment_bytes=1024, index_interval_bytes=100)
    bench.partition(OTHER)
    for _ in range(40):
        bench.settled(b"v" * 100)
    assert len(partition.segments) > 2
    waiting = bench.log.wait({AT: 0}, bytes_min=1 << 30, horizon=Horizon.DURABLE, timeout_ms=60_000)
    assert not waiting.ready
    return bench


def break_indexes(bench: LogBench, files: UnreadableIndexes) -> None:
    for segment in bench.store.get(AT).segments:
        segment.release()
    files.broken = True


# `PartitionLog.notify` lets out what one waiting reader raises.  Both are to be mended there.


def test_a_reader_that_cannot_be_served_costs_no_writer(
    bench: LogBench, files: UnreadableIndexes
) -> None:
    break_indexes(bench, files)
    bench.append(b"v")


def test_a_reader_that_cannot_be_served_costs_no_other_partition(
    bench: LogBench, files: UnreadableIndexes
) -> None:
    appended = [bench.append(b"v"), bench.append(b"w", at=OTHER)]
    answers = [bench.log.settle(each, Ack.DURABLE) for each in appended]
    break_indexes(bench, files)
    with contextlib.suppress(OSError):  # a server's loop logs it
        bench.runtime.step()
    bench.runtime.step()
    assert [answer.ready for answer in answers] == [True, True]

"""A reader far behind waits for the disk on another thread, not on everybody's."""

from __future__ import annotations

from pathlib import Path

from tests.support.logs import AT, LogBench, bytes_of

from pentalog.log.files import Handle, RealFiles
from pentalog.model.types import Horizon


class SlowFiles(RealFiles):
    """Nothing is in memory until it has been warmed."""

    def __init__(self) -> None:
        self.warmed: list[tuple[str, int, int]] = []

    def cached(self, file: Handle, position: int, length: int) -> bool:
        return any(
            name == file.path.name and start <= position and position + length <= end
            for name, start, end in self.warmed
        )

    def warm(self, file: Handle, position: int, length: int) -> None:
        super().warm(file, position, length)
        self.warmed.append((file.path.name, position, position + length))


def test_cold_bytes_are_brought_in_by_a_thread(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition(segment_bytes=100_000)
    for number in range(50):
        bench.append(b"%02d" % number * 5000)
    bench.store.close()

    files = SlowFiles()
    bench = LogBench(tmp_path, files=files)
    bench.partition(segment_bytes=100_000)
    bench.runtime.held_lanes.add("read")
    later = bench.log.read(AT, 3, bytes_max=30_000, horizon=Horizon.DURABLE)
    bench.runtime.step()
    assert not later.ready
    assert bench.metrics.cold_reads == 1
    assert bench.append(b"others go on").base_offset == 50
    bench.runtime.held_lanes.clear()
    bench.runtime.step()
    found = later.value
    assert found.next_offset == 5
    assert b"03" * 5000 in bytes_of(found.pieces)
    assert files.warmed


def test_a_partition_deleted_meanwhile_is_not_served_late(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition(segment_bytes=100_000)
    for number in range(50):
        bench.append(b"%02d" % number * 5000)
    bench.store.close()
    bench = LogBench(tmp_path, files=SlowFiles())
    later = bench.log.read(AT, 3, bytes_max=30_000, horizon=Horizon.DURABLE)
    bench.store.delete(AT)
    bench.runtime.step()
    assert later.ready

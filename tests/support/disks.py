"""Logs and brokers on the simulated disk, with power cuts and faults that a test chooses.

The simulator leaves the outcome of a power cut to chance; here a test says what survives.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Self

from tests.simulation.disk import SECTOR, Directory, Disk, Inode
from tests.simulation.files import SimulatedFiles
from tests.support.logs import LogBench

from pentalog.broker.state import State
from pentalog.broker.topics import LocalTopics
from pentalog.model.types import Horizon, Partition

DATA = Path("/data")
Choose = Callable[[str], bool]
"""Chooses files and directories by their paths in the data directory, which is ""."""


def nothing(path: str) -> bool:
    return False


def everything(path: str) -> bool:
    return True


def make_disk() -> Disk:
    """A disk with an empty data directory whose own name is synced."""
    disk = Disk()
    disk.root.link(DATA.name, Directory())
    disk.root.sync()
    return disk


def cut_power(disk: Disk, *, kept: Choose = nothing, zeroed: Choose = nothing) -> None:
    """Lose what was not synced, except for what is `kept`.

    A directory that is kept keeps its unsynced names, a file its unsynced data.  A file that is
    `zeroed` keeps its size: zeros are where data was not synced.
    """
    data = disk.root.entries[DATA.name]
    assert isinstance(data, Directory)
    _cut(data, "", kept, zeroed)


def _cut(directory: Directory, path: str, kept: Choose, zeroed: Choose) -> None:
    if not kept(path):
        directory.entries = dict(directory.durable)
    directory.sync()
    for name, entry in directory.entries.items():
        below = f"{path}/{name}" if path else name
        if isinstance(entry, Directory):
            _cut(entry, below, kept, zeroed)
            continue
        if zeroed(below):
            intact = entry.durable[: min([len(entry.durable), *entry.sizes])]
            entry.cache = intact + bytes(len(entry.cache) - len(intact))
        elif not kept(below):
            entry.cache = bytearray(entry.durable)
        entry.durable = bytearray(entry.cache)
        _forget_changes(entry)


def _forget_changes(inode: Inode) -> None:
    inode.tags.clear()
    inode.older.clear()
    inode.sizes.clear()


def find_inode(disk: Disk, path: str) -> Inode:
    return next(inode for name, inode in disk.root.walk_files() if name == f"data/{path}")


def punch_hole(disk: Disk, path: str, start: int, end: int) -> None:
    """Leave zeros where unsynced data was: a page that had not been written at the power cut."""
    inode = find_inode(disk, path)
    sectors = range(start // SECTOR, (end - 1) // SECTOR + 1)
    assert all(sector in inode.tags for sector in sectors), "synced data does not get lost"
    inode.write(bytes(end - start), start)


def lose_pages(disk: Disk, path: str) -> None:
    """What a failed sync may do: nothing was written, and no page counts as dirty any more."""
    _forget_changes(find_inode(disk, path))


class DiskBench(LogBench):
    """One life of a log on a simulated disk, which outlives it."""

    def __init__(self, disk: Disk | None = None, **config: Any) -> None:
        self.disk = disk or make_disk()
        self.settings = config
        self.refuse: Callable[[str, str], bool] = lambda operation, path: False
        """Chooses file calls that fail; see the gates of `SimulatedFiles` for their names."""
        self.refused: list[str] = []
        """Calls that have failed."""
        self.code = errno.ENOSPC
        files = SimulatedFiles(self.disk, Random(0), self._gate, lambda: 0.0)
        super().__init__(DATA, files=files, **config)

    def _gate(self, operation: str, path: Path) -> None:
        if self.refuse(operation, path.relative_to(DATA).as_posix()):
            self.refused.append(f"{operation} {path.relative_to(DATA)}")
            raise OSError(self.code, os.strerror(self.code), str(path))

    def heal(self) -> None:
        """End the fault, which must have been met."""
        assert self.refused, "no call failed"
        self.refuse = lambda operation, path: False

    def names(self, path: str = "") -> list[str]:
        return list(self.files.list(DATA / path))

    def stop(self) -> None:
        self.store.close()

    def restart(self, ending: str = "kill", **cut: Any) -> Self:
        """End this life by a stop, a kill or a power cut, and start the next one."""
        if ending == "stop":
            self.stop()
        else:
            self.crash()
        if ending == "cut":
            cut_power(self.disk, **cut)
        return self.again()

    def again(self) -> Self:
        return type(self)(self.disk, **self.settings)

    def durable(self, at: Partition) -> dict[int, bytes | None]:
        """What consumers can read of a partition."""
        return self.values(self.store.get(at).start_offset, at=at, horizon=Horizon.DURABLE)


class BrokerBench(DiskBench):
    """The topics as well; the state is in a real SQLite file."""

    def __init__(self, state_file: Path, disk: Disk | None = None, **config: Any) -> None:
        self.state_file = state_file
        super().__init__(disk, **config)
        synced = self.config.flush_interval_ms > 0
        self.state = State(state_file, self.runtime, synced=synced)
        self.state.open()
        self.topics = LocalTopics(self.store, self.state, self.runtime, self.config)
        self.topics.open()
        self.runtime.step()

    def stop(self) -> None:
        self.state.close()
        self.runtime.step()
        super().stop()

    def crash(self) -> None:
        self.state.abandon()
        super().crash()

    def again(self) -> Self:
        return type(self)(self.state_file, self.disk, **self.settings)


Expected = dict[Partition, dict[int, bytes]]


def check_lives(
    bench: DiskBench, expected: Expected, endings: tuple[str, ...] = ("kill", "stop", "cut")
) -> None:
    """Check what consumers read, and again after more writes and each kind of restart."""
    for life, ending in enumerate((*endings, "")):
        for at, values in expected.items():
            found = bench.durable(at)
            lost, added = values.keys() - found.keys(), found.keys() - values.keys()
            story = f"{at} after {' and '.join(endings[:life]) or 'nothing more'}"
            assert found == values, f"{story}: lost {sorted(lost)}, added {sorted(added)}"
            marks = bench.store.get(at).marks
            assert marks.start <= marks.stable <= marks.durable <= marks.end
            value = b"written before the " + ending.encode()
            written = bench.settled(value, at=at).base_offset
            assert written >= max([marks.start, *(offset + 1 for offset in values)])
            values[written] = value
        if ending:
            bench = bench.restart(ending)
    bench.stop()

"""The log's port to the disk on the simulated file system, with faults and crash points.

One `SimulatedFiles` belongs to one life of the broker.  Every call first asks the gate, which may
end the life there; after that the object is dead and every call raises `Crash` again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

from tests.simulation.disk import PAGE, Directory, Disk, Inode

from pentalog.log.files import Handle, RealFiles, Restricted
from pentalog.model.types import Volume


class Crash(BaseException):
    """The process ends here.  Not an `Exception`: nothing in the broker may catch it."""


class SimulatedHandle(Handle):
    __slots__ = ("inode",)

    def __init__(self, path: Path, inode: Inode) -> None:
        super().__init__(-1, path)
        self.inode = inode


class Faults:
    """What goes wrong at present; probabilities per call."""

    READ: Final = "read"
    WRITE: Final = "write"
    SYNC: Final = "sync"

    def __init__(self) -> None:
        self.errors: dict[str, float] = {}
        self.cold = 0.0
        """How often data is not in memory and has to be read by another thread."""
        self.sync_failed = False
        """A sync has failed in this life."""
        self.met = 0
        """Calls that failed so far."""

    def clear(self) -> None:
        self.errors.clear()


class SimulatedFiles(RealFiles):
    """Composite methods are inherited: they are built from the calls below."""

    def __init__(
        self,
        disk: Disk,
        random: Random,
        gate: Callable[[str, Path], None],
        clock_s: Callable[[], float],
    ) -> None:
        self.disk = disk
        self.faults = Faults()
        self._random = random
        self._gate = gate
        self._clock_s = clock_s

    # Names

    def _directory(self, path: Path) -> Directory:
        found: Inode | Directory | None = self.disk.root
        for part in path.parts[1:]:
            if not isinstance(found, Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            found = found.entries.get(part)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if not isinstance(found, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return found

    def _entry(self, path: Path) -> Inode | Directory | None:
        try:
            return self._directory(path.parent).entries.get(path.name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _inode(self, path: Path) -> Inode:
        found = self._entry(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if isinstance(found, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return found

    def _fail(self, code: int, path: Path) -> None:
        self.faults.met += 1
        raise OSError(code, os.strerror(code), str(path))

    def _maybe_fail(self, kind: str, path: Path) -> None:
        if self.faults.errors and self._random.random() < self.faults.errors.get(kind, 0.0):
            self._fail(errno.EIO, path)

    def _check_space_for_name(self, path: Path) -> None:
        """A new name may need a block of its own, or fit in one that is there."""
        if self.disk.space_pages == 0 and self._random.random() < 0.6:
            self._fail(errno.ENOSPC, path)

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> Handle:
        found = self._entry(path)
        if found is None and create:
            self._gate("create", path)
            self._check_space_for_name(path)
            found = Inode()
            self._directory(path.parent).link(path.name, found)
            self._gate("created", path)
        return SimulatedHandle(path, self._inode(path))

    def list(self, path: Path) -> Sequence[str]:
        self._gate("list", path)
        return sorted(self._directory(path).entries)

    def exists(self, path: Path) -> bool:
        return self._entry(path) is not None

    def stat(self, path: Path) -> tuple[int, float]:
        found = self._entry(path)
        if isinstance(found, Directory):
            return 0, 0.0
        inode = self._inode(path)
        return len(inode.cache), inode.changed_s

    def volume(self, path: Path) -> Volume:
        return Volume(1 << 30, 0 if self.disk.space_pages is not None else 1 << 29)

    def make_directory(self, path: Path) -> None:
        directory = self.disk.root
        for part in path.parts[1:]:
            found = directory.entries.get(part)
            if found is None:
                self._gate("mkdir", path)
                self._check_space_for_name(path)
                found = Directory()
                directory.link(part, found)
            if not isinstance(found, Directory):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            directory = found

    def restrict(self, directory: Path, marker: Path) -> Restricted:
        return Restricted(0, 0)  # there is nobody else here

    def rename(self, old: Path, new: Path) -> None:
        assert old.parent == new.parent, "only inside one directory"
        self._gate("rename", old)
        if self.disk.space_pages is not None and self._random.random() < self.disk.renames_fail:
            self._fail(errno.ENOSPC, old)
        self._maybe_fail(Faults.WRITE, old)
        directory = self._directory(old.parent)
        if old.name not in directory.entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(old))
        directory.rename(old.name, new.name)
        self._gate("renamed", new)

    def remove(self, path: Path) -> None:
        self._gate("remove", path)
        found = self._entry(path)
        if found is None:
            return
        if isinstance(found, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        self._directory(path.parent).unlink(path.name)

    def remove_directory(self, path: Path) -> None:
        found = self._entry(path)
        if not isinstance(found, Directory):
            return
        for name in list(found.entries):
            self.remove(path / name)
        self._gate("rmdir", path)
        self._directory(path.parent).unlink(path.name)

    def lock(self, path: Path) -> Handle:
        return self.open(path, create=True)

    # Contents

    def size(self, file: Handle) -> int:
        return len(_inode(file).cache)

    def read(self, file: Handle, size: int, position: int) -> bytes:
        self._maybe_fail(Faults.READ, file.path)
        return bytes(_inode(file).cache[position : position + size])

    def read_into(self, file: Handle, view: memoryview, position: int) -> int:
        data = self.read(file, len(view), position)
        view[: len(data)] = data
        return len(data)

    def map(self, file: Handle, position: int = 0) -> bytes:
        self._maybe_fail(Faults.READ, file.path)
        return bytes(_inode(file).cache)

    def cached(self, file: Handle, position: int, length: int) -> bool:
        cold = self.faults.cold
        return not cold or self._random.random() >= cold

    def warm(self, file: Handle, position: int, length: int) -> None:
        self._gate("warm", file.path)
        self._maybe_fail(Faults.READ, file.path)

    def write(self, file: Handle, data: bytes | bytearray | memoryview, position: int) -> None:
        inode = _inode(file)
        try:
            self._gate("write", file.path)
        except Crash:
            # The kernel copies page by page: a killed process may leave a part.
            if self._random.random() < 0.3:
                self._put(inode, data, position, self._random.randint(0, len(data)) // PAGE * PAGE)
            raise
        length = self._allocate(inode, position, len(data))
        if self.faults.errors and self._random.random() < self.faults.errors.get(Faults.WRITE, 0.0):
            self._put(inode, data, position, self._random.randint(0, length))
            self._fail(errno.EIO, file.path)
        self._put(inode, data, position, length)
        if length < len(data):
            self._fail(errno.ENOSPC, file.path)
        self._gate("written", file.path)

    def _put(
        self, inode: Inode, data: bytes | bytearray | memoryview, position: int, length: int
    ) -> None:
        inode.write(memoryview(data)[:length], position)
        inode.changed_s = self._clock_s()

    def _allocate(self, inode: Inode, position: int, length: int) -> int:
        """How many bytes of a write there is space for."""
        space = self.disk.space_pages
        if space is None:
            return length
        wanted = inode.new_pages(position, length)
        if len(wanted) <= space:
            self.disk.space_pages = space - len(wanted)
            return length
        self.disk.space_pages = 0
        return max(0, min(length, wanted[space] * PAGE - position))

    def write_synced(
        self, file: Handle, data: bytes | bytearray | memoryview, position: int
    ) -> None:
        try:
            self.write(file, data, position)
        except OSError:
            self.faults.sync_failed = True
            raise
        inode = _inode(file)
        if self._sync_fails():
            inode.fail_sync(self._random)
            self._fail(errno.EIO, file.path)
        inode.sync_range(position, len(data))
        self._gate("synced", file.path)

    def _sync_fails(self) -> bool:
        errors = self.faults.errors
        if errors and self._random.random() < errors.get(Faults.SYNC, 0.0):
            self.faults.sync_failed = True
            return True
        return False

    def sync(self, file: Handle) -> None:
        self._gate("sync", file.path)
        inode = _inode(file)
        if self._sync_fails():
            inode.fail_sync(self._random)
            self._fail(errno.EIO, file.path)
        inode.sync()
        self._gate("synced", file.path)

    def sync_directory(self, path: Path) -> None:
        self._gate("sync_directory", path)
        directory = self._directory(path)
        if self._sync_fails():
            self._fail(errno.EIO, path)
        directory.sync()
        self._gate("synced", path)

    def truncate(self, file: Handle, size: int) -> None:
        self._gate("truncate", file.path)
        self._maybe_fail(Faults.WRITE, file.path)
        inode = _inode(file)
        inode.truncate(size)
        inode.changed_s = self._clock_s()
        self._gate("truncated", file.path)


def _inode(file: Handle) -> Inode:
    assert isinstance(file, SimulatedHandle)
    return file.inode

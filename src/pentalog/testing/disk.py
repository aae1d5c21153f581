"""A disk that can be full."""

from __future__ import annotations

import errno
from pathlib import Path

from pentalog.log.files import Handle, RealFiles
from pentalog.model.types import Volume


class FillableFiles(RealFiles):
    """The real disk, until `full` is set: then whatever needs space fails as it would there."""

    def __init__(self) -> None:
        self.full = False

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> Handle:
        if create and not path.exists():
            self._demand_space(path)
        return super().open(path, create=create, writable=writable)

    def write(self, file: Handle, data: bytes | bytearray | memoryview, position: int) -> None:
        self._demand_space(file.path)
        super().write(file, data, position)

    def write_synced(
        self, file: Handle, data: bytes | bytearray | memoryview, position: int
    ) -> None:
        self._demand_space(file.path)
        super().write_synced(file, data, position)

    def make_directory(self, path: Path) -> None:
        if not path.exists():
            self._demand_space(path)
        super().make_directory(path)

    def volume(self, path: Path) -> Volume:
        found = super().volume(path)
        return found._replace(usable_bytes=0) if self.full else found

    def _demand_space(self, path: Path) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

"""Files that fail on purpose: the n-th call that writes, syncs or cuts does not succeed.

Syncs that succeed do nothing: no power is cut here, and thousands of real ones would take hours.
"""

from __future__ import annotations

import errno
from pathlib import Path

from pentalog.log.files import Handle, RealFiles


class FaultyFiles(RealFiles):
    """Counts the calls that can fail; from call number `fail_at` on, `kind` happens once."""

    def __init__(self, fail_at: int = 0, kind: str = "EIO") -> None:
        self.calls = 0
        self.fail_at = fail_at
        self.kind = kind
        self.failed: str = ""

    def _count(self, what: str) -> bool:
        self.calls += 1
        if self.calls == self.fail_at:
            self.failed = what
            return True
        return False

    def _fail(self, path: Path) -> None:
        code = errno.ENOSPC if self.kind == "ENOSPC" else errno.EIO
        raise OSError(code, "injected", str(path))

    def write(self, file: Handle, data: bytes | bytearray | memoryview, position: int) -> None:
        if self._count("write"):
            if self.kind == "short":
                super().write(file, bytes(data)[: len(data) // 2], position)
            self._fail(file.path)
        super().write(file, data, position)

    def write_synced(
        self, file: Handle, data: bytes | bytearray | memoryview, position: int
    ) -> None:
        if self._count("write_synced"):
            if self.kind == "short":
                super().write(file, bytes(data)[: len(data) // 2], position)
            self._fail(file.path)
        super().write(file, data, position)

    def sync(self, file: Handle) -> None:
        if self._count("sync"):
            self._fail(file.path)

    def sync_directory(self, path: Path) -> None:
        if self._count("sync_directory"):
            self._fail(path)

    def truncate(self, file: Handle, size: int) -> None:
        if self._count("truncate"):
            self._fail(file.path)
        super().truncate(file, size)

    def rename(self, old: Path, new: Path) -> None:
        if self._count("rename"):
            self._fail(old)
        super().rename(old, new)

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> Handle:
        if create and self._count("open"):
            self._fail(path)
        return super().open(path, create=create, writable=writable)

"""The only module that touches the disk.

`Files` is the port; `RealFiles` is the disk; the tests bring one that fails on purpose.
Reads and writes name their position, so a failed or short write harms nothing: the next one
starts at the same place again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from pentalog.model.types import Volume

_READ_NOW: Final = getattr(os, "RWF_NOWAIT", 0)
_WRITE_SYNCED: Final = getattr(os, "RWF_DSYNC", 0)
_READ_MAPPED: Final = 22
"""MADV_POPULATE_READ, for which Python has no name."""
_WHOLE_BYTES_MAX: Final = 4 << 20
"""Written by one system call."""
_PIECE_BYTES: Final = 128 << 10
"""What is longer is written in pieces of this size.

For a long one the kernel takes its page cache from the largest blocks of free memory, which a
virtual machine may have given back to its host: 16 MiB then took 40 ms instead of 8.  As a rule
long writes are quicker: a producer's batches in pieces cost the broker 15 % more CPU.
"""
_PROBE: Final = bytearray(1)
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class Handle:
    """An open file; closed when the last holder lets go of it.

    Slices on their way to a client hold their file, so retention may unlink it meanwhile.
    """

    __slots__ = ("_close", "fd", "path")

    def __init__(self, fd: int, path: Path) -> None:
        self.fd = fd
        self.path = path
        self._close = os.close  # kept: module globals may be gone when the interpreter ends

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self._close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


class Restricted(NamedTuple):
    """What became of files and directories that other users had permissions for."""

    changed: int
    refused: int


class Files(Protocol):
    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> Handle: ...
    def size(self, file: Handle) -> int: ...
    def read(self, file: Handle, size: int, position: int) -> bytes: ...
    def read_into(self, file: Handle, view: memoryview, position: int) -> int: ...
    def write(self, file: Handle, data: bytes | bytearray | memoryview, position: int) -> None:
        """All of it, or an OSError with any part of it written."""

    def write_synced(
        self, file: Handle, data: bytes | bytearray | memoryview, position: int
    ) -> None:
        """Written and on the disk when this returns."""

    def sync(self, file: Handle) -> None: ...
    def sync_directory(self, path: Path) -> None: ...
    def truncate(self, file: Handle, size: int) -> None: ...
    def map(self, file: Handle, position: int = 0) -> mmap.mmap | bytes:
        """The whole file, of which nothing before `position` will be looked at."""

    def cached(self, file: Handle, position: int, length: int) -> bool:
        """True if both ends of the range can be read without waiting for the disk."""

    def warm(self, file: Handle, position: int, length: int) -> None:
        """Bring the range into memory; slow, for a thread."""

    def list(self, path: Path) -> Sequence[str]: ...
    def exists(self, path: Path) -> bool: ...
    def stat(self, path: Path) -> tuple[int, float]:
        """Size and time of last change."""

    def volume(self, path: Path) -> Volume:
        """The disk that holds a directory."""

    def make_directory(self, path: Path) -> None: ...
    def restrict(self, directory: Path, marker: Path) -> Restricted:
        """Take all permissions of other users away from a directory and what is in it.

        `marker` is a file there that is restricted last: if it and the directory are restricted
        already, nothing else is looked at.
        """

    def rename(self, old: Path, new: Path) -> None: ...
    def remove(self, path: Path) -> None: ...
    def remove_directory(self, path: Path) -> None: ...
    def replace_text(self, path: Path, text: str) -> None:
        """Write a small file so that after a crash it is wholly the old or wholly the new one."""

    def lock(self, path: Path) -> Handle:
        """Take the lock file for as long as the handle lives; BlockingIOError if another has it."""


def sync_file(files: Files, path: Path) -> None:
    """Bring the contents of a file that is not open to the disk."""
    file = files.open(path)
    try:
        files.sync(file)
    finally:
        file.close()


def mapped(fd: int, size: int, path: Path, position: int = 0) -> mmap.mmap:
    """A file as memory, read from `position` on.

    What the disk cannot give, or what was cut off meanwhile, is an OSError here; of a map that
    was not read it is a signal, which ends the process.
    """
    found = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
    try:
        if position < size:
            found.madvise(_READ_MAPPED, position // mmap.PAGESIZE * mmap.PAGESIZE)
    except OSError as error:
        if error.errno != errno.EINVAL:  # as Linux before 5.14 and other systems say
            found.close()
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path)) from error
    return found


def _open_to_others(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return bool(os.stat(path).st_mode & _OTHERS)
    return False


def _restrict(path: Path) -> int:
    """1 if permissions were taken away; links are left alone, and files that are gone."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if mode & _OTHERS and not stat.S_ISLNK(mode):
            os.chmod(path, stat.S_IMODE(mode) & ~_OTHERS)
            return 1
    return 0


def _named(error: OSError, file: Handle) -> OSError:
    """The same error with the file's name, which the system does not report for an open file."""
    return OSError(error.errno, error.strerror, str(file.path))


class RealFiles:
    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> Handle:
        # Without blocking: a pipe in the place of a file would be waited for without end.
        flags = os.O_CLOEXEC | os.O_NONBLOCK | (os.O_RDWR if writable else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT
        file = Handle(os.open(path, flags, _FILE_MODE), path)
        if not stat.S_ISREG(os.fstat(file.fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file

    def size(self, file: Handle) -> int:
        return os.fstat(file.fd).st_size

    def read(self, file: Handle, size: int, position: int) -> bytes:
        try:
            return os.pread(file.fd, size, position)
        except OSError as error:
            raise _named(error, file) from error

    def read_into(self, file: Handle, view: memoryview, position: int) -> int:
        return os.preadv(file.fd, [view], position)

    def write(self, file: Handle, data: bytes | bytearray | memoryview, position: int) -> None:
        try:
            if len(data) > _WHOLE_BYTES_MAX:
                self._finish(file, data, position, 0)
                return
            written = os.pwrite(file.fd, data, position)
            if written != len(data):
                self._finish(file, data, position, written)
        except OSError as error:
            raise _named(error, file) from error

    def _finish(
        self, file: Handle, data: bytes | bytearray | memoryview, position: int, written: int
    ) -> None:
        # A short write on a regular file means that something is wrong (no space, a quota, a
        # signal): going on either completes it or brings out the error.
        view = memoryview(data)
        while written < len(view):
            piece = view[written : written + _PIECE_BYTES]
            step = os.pwrite(file.fd, piece, position + written)
            if step == 0:
                raise OSError(errno.EIO, "the disk took no more bytes", str(file.path))
            written += step

    def write_synced(
        self, file: Handle, data: bytes | bytearray | memoryview, position: int
    ) -> None:
        if not _WRITE_SYNCED:
            self.write(file, data, position)
            self.sync(file)
            return
        try:
            written = os.pwritev(file.fd, [data], position, _WRITE_SYNCED)
            if written != len(data):
                self._finish(file, data, position, written)
                self.sync(file)
        except OSError as error:
            raise _named(error, file) from error

    def sync(self, file: Handle) -> None:
        try:
            os.fdatasync(file.fd)
        except OSError as error:
            raise _named(error, file) from error

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self, file: Handle, size: int) -> None:
        try:
            os.ftruncate(file.fd, size)
        except OSError as error:
            raise _named(error, file) from error

    def map(self, file: Handle, position: int = 0) -> mmap.mmap | bytes:
        size = self.size(file)
        return mapped(file.fd, size, file.path, position) if size else b""

    def cached(self, file: Handle, position: int, length: int) -> bool:
        if not _READ_NOW or length <= 0:
            return True
        try:
            os.preadv(file.fd, [_PROBE], position, _READ_NOW)
            os.preadv(file.fd, [_PROBE], position + length - 1, _READ_NOW)
        except BlockingIOError:
            return False
        except OSError:
            return True  # a file system that cannot tell
        return True

    def warm(self, file: Handle, position: int, length: int) -> None:
        ahead = 2 << 20
        os.posix_fadvise(file.fd, position, length + ahead, os.POSIX_FADV_WILLNEED)
        for at in range(position, position + length, 128 << 10):
            os.pread(file.fd, 1, at)
        os.pread(file.fd, 1, max(position, position + length - 1))

    def list(self, path: Path) -> Sequence[str]:
        return sorted(os.listdir(path))

    def exists(self, path: Path) -> bool:
        return os.path.exists(path)

    def stat(self, path: Path) -> tuple[int, float]:
        found = os.stat(path)
        return found.st_size, found.st_mtime

    def volume(self, path: Path) -> Volume:
        found = os.statvfs(path)
        return Volume(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def make_directory(self, path: Path) -> None:
        os.makedirs(path, _DIRECTORY_MODE, exist_ok=True)

    def restrict(self, directory: Path, marker: Path) -> Restricted:
        if not (_open_to_others(directory) or _open_to_others(marker)):
            return Restricted(0, 0)
        paths = [directory.resolve()]
        for place, folders, names in os.walk(directory):
            inside = (Path(place, name) for name in (*folders, *names))
            paths += [path for path in inside if path != marker]
        changed = refused = 0
        for path in (*paths, marker):
            try:
                changed += _restrict(path)
            except OSError:  # the file of another user, or a disk that knows no permissions
                refused += 1
        return Restricted(changed, refused)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def remove(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_directory(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(path):
                os.unlink(path / name)
            os.rmdir(path)

    def replace_text(self, path: Path, text: str) -> None:
        draft = path.with_name(path.name + ".tmp")
        file = self.open(draft, create=True)
        try:
            self.truncate(file, 0)
            self.write(file, text.encode(), 0)
            self.sync(file)
        finally:
            file.close()
        self.rename(draft, path)
        self.sync_directory(path.parent)

    def lock(self, path: Path) -> Handle:
        file = self.open(path, create=True)
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
        return file

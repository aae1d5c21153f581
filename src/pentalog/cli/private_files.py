"""Files that only their owner may read: backups, support bundles, profiles."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_OTHERS: Final = 0o077
_FILE_MODE: Final = 0o600


@contextmanager
def created_private() -> Iterator[None]:
    """Files and directories made inside get no permissions for other users.

    The umask belongs to the whole process: files that other threads make meanwhile get none either.
    """
    before = os.umask(_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def make_private(path: Path) -> None:
    """Make a file if there is none, and take all permissions of other users away."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    try:
        os.fchmod(fd, _FILE_MODE)
    finally:
        os.close(fd)

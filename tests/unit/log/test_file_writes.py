"""Writes that are too long for one system call."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from pentalog.log.files import RealFiles

LARGE = os.urandom(1 << 20) * 5 + b"the end"


def system_calls() -> int:
    """Count the writes that this thread has asked the kernel for."""
    for line in Path("/proc/thread-self/io").read_text().splitlines():
        if line.startswith("syscw:"):
            return int(line.split()[1])
    raise AssertionError("no count of writes")


def test_a_large_write_is_made_in_pieces(tmp_path: Path) -> None:
    """A kernel takes the memory of a long one from blocks that its host may have to provide."""
    files = RealFiles()
    file = files.open(tmp_path / "data", create=True)
    before = system_calls()

    files.write(file, memoryview(LARGE), 5)

    assert system_calls() - before >= len(LARGE) // (128 << 10)
    assert (tmp_path / "data").read_bytes() == bytes(5) + LARGE


def test_a_large_write_that_fails_half_way_is_an_error(tmp_path: Path) -> None:
    files = RealFiles()
    file = files.open(tmp_path / "data", create=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OSError, match="too large") as refusal:
            files.write(file, LARGE, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert refusal.value.filename == str(tmp_path / "data")
    assert files.size(file) <= 1 << 20

"""What a disk does not give is an error of a read, not the end of the process."""

from __future__ import annotations

import errno
import mmap
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pentalog.log.files import RealFiles

_PAGES = 4 * mmap.PAGESIZE


def test_a_file_that_is_cut_off_under_a_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(_PAGES))

    class Cut(mmap.mmap):
        def madvise(self, *arguments: Any) -> None:
            try:
                super().madvise(*arguments)
            except OSError:
                pytest.skip("this system does not read maps ahead of their use")
            os.truncate(path, mmap.PAGESIZE)
            super().madvise(*arguments)

    monkeypatch.setattr(sys.modules["pentalog.log.files"].mmap, "mmap", Cut)
    with pytest.raises(OSError, match="segment") as told:
        RealFiles().map(RealFiles().open(path))
    assert told.value.errno == errno.EIO


@pytest.mark.parametrize("position", [0, 1, mmap.PAGESIZE, _PAGES - 1, _PAGES, _PAGES + 1])
def test_a_map_is_the_whole_file_wherever_it_is_read_from(tmp_path: Path, position: int) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(range(256)) * (_PAGES // 256))
    found = RealFiles().map(RealFiles().open(path), position)
    assert bytes(found) == path.read_bytes()
    assert not isinstance(found, bytes)
    found.close()


def test_nothing_is_mapped_of_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "segment").touch()
    assert RealFiles().map(RealFiles().open(tmp_path / "segment")) == b""

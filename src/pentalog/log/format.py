"""The format of a data directory: a number in its file `pentalog.format`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pentalog.log.checkpoints import read_text
from pentalog.log.files import Files

FORMAT: Final = 2
FORMATS_READ: Final = ("1", "2")
"""Format 1 had another journal and checkpoints without topic ids; both are read."""
FORMAT_FILE: Final = "pentalog.format"
_CHARACTERS_MAX: Final = 20


def read_format(files: Files, directory: Path) -> str:
    """The number as it stands there; nothing without the file; raises OSError."""
    return read_text(files, directory / FORMAT_FILE).strip()[:_CHARACTERS_MAX]


def write_format(files: Files, directory: Path) -> None:
    files.replace_text(directory / FORMAT_FILE, f"{FORMAT}\n")

"""Put a compacted segment in the place of those it was made of, so that a crash harms nothing.

Files of the swap, all named by the base offset of the first source:

    BASE.{log,index,timeindex,txnindex}.cleaned   being written; worth nothing after a crash
    BASE.covers.swap                              size of the new log, bases of its sources, `end`
    BASE.{index,timeindex,txnindex}.swap          complete, waiting
    BASE.log.swap                                 complete: from here on the swap will be finished

Every step syncs what the next one relies on, and finishing can be done again from any point:
with `.log.cleaned` beside the list nothing has happened yet, without it everything has or will.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pentalog.log.files import Files
from pentalog.log.inspection import inspect
from pentalog.log.segment import DELETED, SUFFIXES, segment_path

log = logging.getLogger("pentalog.log")

CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"

_BESIDE: Final = (".index", ".timeindex", ".txnindex")
_COVERS: Final = ".covers" + SWAP
_END: Final = "end"
_SWAP_NAME: Final = re.compile(r"(\d{20})\.(?:log|covers)\.swap")
_SEGMENT_NAME: Final = re.compile(r"(\d{20})\.log")


def announce(files: Files, directory: Path, base: int, sources: Sequence[int], size: int) -> None:
    """Say what a new segment, complete and synced as `.cleaned`, is going to replace."""
    assert sources[0] == base
    words = [str(size), *map(str, sources), _END]
    files.replace_text(segment_path(directory, base, _COVERS), " ".join(words) + "\n")
    for suffix in _BESIDE:
        files.rename(
            segment_path(directory, base, suffix + CLEANED),
            segment_path(directory, base, suffix + SWAP),
        )


def commit(files: Files, directory: Path, bases: Sequence[int]) -> None:
    """The point of no return for what has been announced."""
    files.sync_directory(directory)
    for base in bases:
        files.rename(
            segment_path(directory, base, ".log" + CLEANED),
            segment_path(directory, base, ".log" + SWAP),
        )
    files.sync_directory(directory)


def put_in_place(files: Files, directory: Path, base: int, sources: Sequence[int]) -> None:
    """Give the new files their names; what is left of the sources goes.  May be repeated."""
    for suffix in _BESIDE:
        ready = segment_path(directory, base, suffix + SWAP)
        if files.exists(ready):
            files.rename(ready, segment_path(directory, base, suffix))
    for source in sources:
        if source != base:
            for suffix in SUFFIXES:
                files.remove(segment_path(directory, source, suffix))
    ready = segment_path(directory, base, ".log" + SWAP)
    if files.exists(ready):
        files.rename(ready, segment_path(directory, base, ".log"))


def close(files: Files, directory: Path, bases: Sequence[int]) -> None:
    """The swaps are complete: nothing of them needs to be known any more."""
    files.sync_directory(directory)
    for base in bases:
        files.remove(segment_path(directory, base, _COVERS))


def undo(files: Files, directory: Path, bases: Sequence[int]) -> None:
    """Take back what was prepared, announced or even committed, but not put in place."""
    for base in bases:
        ready = segment_path(directory, base, ".log" + SWAP)
        if files.exists(ready):
            files.rename(ready, segment_path(directory, base, ".log" + CLEANED))
    files.sync_directory(directory)
    for base in bases:
        files.remove(segment_path(directory, base, _COVERS))
    files.sync_directory(directory)
    for base in bases:
        files.remove(segment_path(directory, base, ".log" + CLEANED))
        for suffix in _BESIDE:
            files.remove(segment_path(directory, base, suffix + CLEANED))
            files.remove(segment_path(directory, base, suffix + SWAP))


def tidy(files: Files, directory: Path) -> list[str]:
    """Finish or undo what a crash interrupted; gives the names that remain."""
    names = set(files.list(directory))
    bases = sorted({int(match[1]) for name in names if (match := _SWAP_NAME.fullmatch(name))})
    for base in bases:
        if f"{base:020d}.log{CLEANED}" in names:
            undo(files, directory, [base])
        else:
            _finish(files, directory, base)
    for name in files.list(directory):
        if name.endswith((DELETED, CLEANED, SWAP, ".tmp")):
            files.remove(directory / name)
    return list(files.list(directory))


def _finish(files: Files, directory: Path, base: int) -> None:
    sources = _announced(files, directory, base)
    if files.exists(segment_path(directory, base, ".log" + SWAP)):
        if sources is None:
            sources = _overlapped(files, directory, base)
            for suffix in _BESIDE:  # nobody said that what lies beside it belongs to it
                files.remove(segment_path(directory, base, suffix))
        log.warning("%s: finishing the compaction of the segments at %s", directory.name, sources)
    elif sources is None or not _in_place(files, directory, base):
        files.remove(segment_path(directory, base, _COVERS))
        return
    put_in_place(files, directory, base, sources)
    close(files, directory, [base])


def _words(files: Files, directory: Path, base: int) -> list[str]:
    path = segment_path(directory, base, _COVERS)
    if not files.exists(path):
        return []
    file = files.open(path, writable=False)
    try:
        words = files.read(file, files.size(file), 0).decode("ascii", "replace").split()
    finally:
        file.close()
    whole = len(words) > 2 and words[-1] == _END and all(map(str.isdecimal, words[:-1]))
    return words[:-1] if whole and int(words[1]) == base else []


def _announced(files: Files, directory: Path, base: int) -> list[int] | None:
    """The sources as they were announced; None if that cannot be read."""
    words = _words(files, directory, base)
    return [int(word) for word in words[1:]] or None


def _in_place(files: Files, directory: Path, base: int) -> bool:
    """Is the announced segment there already?"""
    path = segment_path(directory, base, ".log")
    return files.exists(path) and files.stat(path)[0] == int(_words(files, directory, base)[0])


def _overlapped(files: Files, directory: Path, base: int) -> list[int]:
    """The segments whose offsets a new one takes, going by its own batches.

    Apache Kafka leaves no list beside its swap files.
    """
    file = files.open(segment_path(directory, base, ".log" + SWAP), writable=False)
    mapped = files.map(file)
    view = memoryview(mapped)
    try:
        end = inspect(
            view, file_position=0, segment_base=base, next_offset=base, gaps=True
        ).next_offset
    finally:
        view.release()
        if not isinstance(mapped, bytes):
            mapped.close()
        file.close()
    names = files.list(directory)
    found = [int(match[1]) for name in names if (match := _SEGMENT_NAME.fullmatch(name))]
    return [base, *(source for source in found if base < source < end)]

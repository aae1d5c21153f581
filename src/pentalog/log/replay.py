"""Write what the journal holds of a partition to its segment files again, before they are read.

The journal is the disk's word for every acknowledged record whose segment was not synced yet: a
power cut may have left such a segment short, with zeros in its middle, or as it should be.  Each
entry says where its batches were written, so they are put there again.  That can be repeated: a
cut during recovery harms nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from pentalog import kernels
from pentalog.log.files import Files, Handle
from pentalog.log.inspection import walk
from pentalog.log.journal import Entry
from pentalog.log.segment import segment_path

log = logging.getLogger("pentalog.log")

_HEADER_BYTES: Final = 61
_PIECE_BYTES: Final = 1 << 20
_ENTRIES_PER_TURN: Final = 1_000
_SEGMENT_BYTES_MAX: Final = (1 << 32) - 1
"""What an index entry can point at."""


class _End(NamedTuple):
    """How far the batches of a segment are known."""

    offset: int
    position: int


class Replayed(NamedTuple):
    end_offset: int
    """Every offset before it was acknowledged; 0 if the journal has nothing of the partition."""
    boundaries: dict[int, list[int]]
    """Positions in segments, by base offset, where batches begin."""
    rejected: list[Entry]
    """Entries that cannot be applied."""
    restored: list[Entry]
    """Entries that the files lacked, wholly or in part."""


def replay(
    files: Files,
    directory: Path,
    entries: Iterable[Entry],
    bases: list[int],
    *,
    synced_offset: int,
) -> Generator[None, None, Replayed]:
    """Apply the entries of one partition, oldest first; `bases` are its segments.

    What lies before `synced_offset` is in the files for good, and maybe compacted since.
    Segments that the entries begin are made and added to `bases`.  Yields now and then: there may
    be hundreds of thousands.
    """
    replayed = Replayed(0, {}, [], [])
    ends: dict[int, _End] = {}
    with closing(_SegmentWriter(files, directory)) as writer:
        for number, entry in enumerate(entries):
            if number % _ENTRIES_PER_TURN == _ENTRIES_PER_TURN - 1:
                yield
            end_offset = _end_offset(entry)
            if end_offset < 0:
                replayed.rejected.append(entry)
                continue
            replayed = replayed._replace(end_offset=max(replayed.end_offset, end_offset))
            if end_offset <= synced_offset or not _segment_exists(entry, bases):
                continue  # dropped, or replaced by a compaction, since it was written
            known = ends.get(entry.segment_base)
            if known is None or known.offset > entry.base_offset:
                known = _End(entry.segment_base, 0)
            position = writer.apply(entry, known, replayed.restored)
            if position < 0:
                replayed.rejected.append(entry)
            else:
                replayed.boundaries.setdefault(entry.segment_base, []).append(position)
                ends[entry.segment_base] = _End(end_offset, position + len(entry.payload))
    for positions in replayed.boundaries.values():
        positions.sort()
    if replayed.restored:
        log.warning(
            "%s: restored %d writes from the journal, from offset %d on",
            directory.name,
            len(replayed.restored),
            replayed.restored[0].base_offset,
        )
    return replayed


def _end_offset(entry: Entry) -> int:
    """The offset behind an entry's last batch; -1 if it is not what an entry must be."""
    payload = entry.payload
    if not payload or not -1 <= entry.position <= _SEGMENT_BYTES_MAX - len(payload):
        return -1
    if not 0 <= entry.segment_base <= entry.base_offset:
        return -1
    scan = walk(payload, entry.segment_base, entry.base_offset)
    return -1 if scan.flaw else scan.next_offset


def _segment_exists(entry: Entry, bases: list[int]) -> bool:
    """Is there a segment to write to?  One that the entry begins may have lost its name."""
    if entry.segment_base in bases:
        return True
    if entry.segment_base == entry.base_offset and (not bases or entry.base_offset > bases[-1]):
        bases.append(entry.segment_base)
        return True
    return False


class _SegmentWriter:
    """Writes entries to their places in the segments of one partition."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._base = -1
        self._file: Handle | None = None

    def apply(self, entry: Entry, known: _End, restored: list[Entry]) -> int:
        """Write an entry unless it is there; gives its place, or -1 if none is known."""
        files, file = self._files, self._opened(entry.segment_base)
        position = entry.position
        if position < 0:
            position = _position_of(files, file, entry, known)
        if position < 0:
            return -1
        if files.read(file, len(entry.payload), position) != entry.payload:
            files.write(file, entry.payload, position)
            restored.append(entry)
        return position

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self, base: int) -> Handle:
        if self._file is None or base != self._base:
            self.close()
            self._base = base
            path = segment_path(self._directory, base, ".log")
            self._file = self._files.open(path, create=True)
        return self._file


def _position_of(files: Files, file: Handle, entry: Entry, known: _End) -> int:
    """Where an entry of a journal of version 1 belongs: where the batches before it end.

    They are walked from where an earlier entry ended: a segment may have thousands of entries.
    """
    offset, position = known
    size = _PIECE_BYTES
    while offset < entry.base_offset:
        data = files.read(file, size, position)
        scan = walk(data, entry.segment_base, offset, offset_max=entry.base_offset - 1)
        if scan.position:
            offset, position, size = scan.next_offset, position + scan.position, _PIECE_BYTES
            continue
        needed = kernels.batch_header(data, 0).size if len(data) >= _HEADER_BYTES else 0
        if not size < needed <= files.size(file) - position:
            return -1
        size = needed
    return position if offset == entry.base_offset else -1

"""A data directory read from outside: no lock is taken and nothing is written.

The broker that owns the directory may be running.  It publishes how far others may read
(`marks.py`); below that mark batches never change, but retention and compaction may take or
replace whole segments at any moment, so every segment is opened as if it might be gone.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from pentalog import kernels
from pentalog.log import checkpoints, transactions
from pentalog.log.cuts import Parts
from pentalog.log.directories import read_topic_id
from pentalog.log.files import Files, Handle, RealFiles
from pentalog.log.format import FORMAT, FORMATS_READ, read_format
from pentalog.log.index import OffsetIndex, TimeIndex
from pentalog.log.inspection import is_sound
from pentalog.log.marks import PublishedMarks, read_marks
from pentalog.log.segment import segment_path
from pentalog.model import batch as batches_of
from pentalog.model.pieces import OPENED_BYTES_MAX, Gone, Piece, pack_aborted
from pentalog.model.types import Offset, Partition

PIECE_BYTES: Final = 4 << 20

_SEGMENT_NAME: Final = re.compile(r"(\d{20})\.log")
_COVERS: Final = ".covers.swap"
_HEADER_BYTES: Final = 61
_WALK_BYTES: Final = 64 << 10
_LISTINGS_MAX: Final = 16
_OFFSET_MAX: Final = 1 << 62


class DirectoryUnreadable(Exception):
    """The directory cannot be read; the text says why and what to do."""


class Swapping(Exception):
    """A compacted segment is being put in place: ask again in a moment."""


class Opened(NamedTuple):
    """One segment file at a moment when nothing was being exchanged."""

    file: Handle
    base: Offset
    following: Offset | None
    """Base of the segment behind it."""
    aborted: bytes


class DirectoryReader:
    def __init__(self, directory: Path, files: Files | None = None) -> None:
        self.directory = directory
        self.files = files if files is not None else RealFiles()
        self._names = checkpoints.Names(self.files, directory)
        self._marks: dict[Partition, PublishedMarks] = {}
        """As they were last read."""
        try:
            text = read_format(self.files, directory)
        except OSError as error:
            raise DirectoryUnreadable(f"cannot read the format of {directory}: {error}") from error
        if text not in FORMATS_READ:
            raise DirectoryUnreadable(
                f"{directory} is no data directory of format {FORMAT}"
                f" ({f'it has format {text}' if text else 'it has no pentalog.format'});"
                " name the directory a broker was started with"
            )

    def marks(self) -> dict[Partition, PublishedMarks]:
        """How far each partition may be read at present."""
        for _ in range(_LISTINGS_MAX):
            found = read_marks(self.files, self.directory, self._names)
            if found is not None:
                self._marks = found
                return found
        raise DirectoryUnreadable(
            f"{self.directory} has no marks that say how far it may be read;"
            " start a broker on it once, then read it again"
        )

    def covers(self, at: Partition, topic_id: UUID, limit: Offset) -> bool:
        """May a topic with this id be read up to a limit?

        The file is read again only if it could not be at the last reading: it has a line for each
        partition, and this is asked for each segment.
        """

        def allowed(marks: PublishedMarks | None) -> bool:
            return marks is not None and marks.topic_id == topic_id and marks.stable >= limit

        return allowed(self._marks.get(at)) or allowed(self.marks().get(at))

    def partition(self, at: Partition) -> PartitionReader:
        name = checkpoints.spell(at)
        path = self.directory / checkpoints.CLEANED_OFFSETS
        # Of an older topic of the same name, too: to expect gaps where there are none is harmless.
        compacted = name in checkpoints.read_offsets(self.files, path)
        return PartitionReader(self, at, self.directory / name, compacted=compacted)


class PartitionReader:
    """The files of one partition."""

    def __init__(
        self, owner: DirectoryReader, at: Partition, directory: Path, *, compacted: bool
    ) -> None:
        self.at = at
        self.directory = directory
        self.files = owner.files
        self.compacted = compacted
        self._owner = owner

    def start(self) -> Offset:
        """The first offset that is kept at present."""
        marks = self._owner.marks().get(self.at)
        if marks is None:
            raise DirectoryUnreadable(f"{self.at} was deleted")
        return marks.start

    def check(self, limit: Offset) -> None:
        """Make sure that a limit was set for the topic whose files these are now.

        A new topic of the same name may hold records below it that are not durable.
        """
        found = read_topic_id(self.files, self.directory)
        if not self._owner.covers(self.at, found, limit):
            raise DirectoryUnreadable(f"{self.at} was deleted")

    def bases(self) -> list[Offset]:
        """The segments there are; raises `Swapping` while one is being exchanged."""
        before: list[str] | None = None
        for _ in range(_LISTINGS_MAX):
            try:
                names = list(self.files.list(self.directory))
            except FileNotFoundError as error:
                raise DirectoryUnreadable(f"{self.at} was deleted") from error
            if any(name.endswith(_COVERS) for name in names):
                raise Swapping
            if names == before:
                return [int(match[1]) for name in names if (match := _SEGMENT_NAME.fullmatch(name))]
            before = names
        raise Swapping

    def open_segment(self, offset: Offset) -> Opened:
        """The segment that holds an offset; raises `Gone` if retention has taken it."""
        bases = self.bases()
        place = bisect_right(bases, offset) - 1
        if place < 0:
            behind = max(self.start(), bases[0] if bases else offset + 1)
            raise Gone(offset, behind, f"{self.at} starts at {behind}")
        aborted = self._aborted(bases[place:])
        path = segment_path(self.directory, bases[place], ".log")
        try:
            file = self.files.open(path, writable=False)
            changed = self.bases() != bases or self._replaced(path, file, bases[place] == bases[-1])
        except FileNotFoundError as error:
            raise Swapping from error
        if changed:
            raise Swapping
        following = bases[place + 1] if place + 1 < len(bases) else None
        return Opened(file, bases[place], following, pack_aborted(aborted))

    def _replaced(self, path: Path, file: Handle, active: bool) -> bool:
        return not active and self.files.stat(path)[0] != self.files.size(file)

    def _aborted(self, bases: list[Offset]) -> list[tuple[int, Offset, Offset]]:
        """Of all transactions whose marker lies in these segments."""
        found: list[tuple[int, Offset, Offset]] = []
        for base in bases:
            data = self._whole(segment_path(self.directory, base, ".txnindex"))
            entries = transactions.unpack(data, base, _OFFSET_MAX)
            found += [
                (entry.producer_id, entry.first_offset, entry.last_offset) for entry in entries
            ]
        return found

    def _whole(self, path: Path) -> bytes:
        try:
            file = self.files.open(path, writable=False)
        except FileNotFoundError:
            return b""
        try:
            return self.files.read(file, self.files.size(file), 0)
        finally:
            file.close()

    def index(self, base: Offset) -> OffsetIndex:
        """What the index file says at present: hints, to be checked."""
        index = OffsetIndex()
        packed = self._whole(segment_path(self.directory, base, ".index"))
        index.extend(packed[: len(packed) - len(packed) % OffsetIndex.entry_bytes])
        return index

    def time_index(self, base: Offset) -> TimeIndex:
        index = TimeIndex()
        packed = self._whole(segment_path(self.directory, base, ".timeindex"))
        index.extend(packed[: len(packed) - len(packed) % TimeIndex.entry_bytes])
        return index

    def find(self, opened: Opened, offset: Offset) -> int:
        """Position of the first batch that reaches an offset, or of the end of the file."""
        position = self.index(opened.base).position_at(offset - opened.base)
        if not self._holds(opened, position, offset):
            position = 0
        while True:
            data = self.files.read(opened.file, _WALK_BYTES, position)
            at, stopped, _, _ = kernels.locate_offset(data, 0, len(data), offset)
            if at >= 0:
                return position + at
            if stopped <= 0:
                return position
            position += stopped

    def _holds(self, opened: Opened, position: int, offset: Offset) -> bool:
        if position == 0:
            return True
        data = self.files.read(opened.file, _HEADER_BYTES, position)
        if len(data) < _HEADER_BYTES:
            return False
        header = kernels.batch_header(data, 0)
        return header.magic == 2 and opened.base <= header.base_offset <= offset

    def offset_at(self, timestamp_ms: int, *, limit: Offset) -> Offset:
        """The first offset whose record is that new or newer; `limit` if there is none below."""
        start = self.start()
        for base in self.bases():
            if base >= limit:
                break
            opened = self.open_segment(max(base, start))
            if opened.base != base:
                continue
            found = self._offset_in(opened, timestamp_ms, start)
            if found is not None:
                return min(found, limit)
        return limit

    def _offset_in(self, opened: Opened, timestamp_ms: int, start: Offset) -> Offset | None:
        times = self.time_index(opened.base)
        if len(times) and times.newest < timestamp_ms and self._sealed(opened):
            return None
        relative = times.offset_before(timestamp_ms)
        position = self.index(opened.base).position_at(relative)
        if not self._holds(opened, position, opened.base + relative):
            position = 0
        while True:
            data = self.files.read(opened.file, _WALK_BYTES, position)
            at, stopped = kernels.locate_time(data, 0, len(data), timestamp_ms)
            if at < 0:
                if stopped <= 0:
                    return None
                position += stopped
                continue
            size = kernels.batch_header(data, at).size
            whole = self.files.read(opened.file, size, position + at)
            for offset, record in batches_of.records_of(whole, 0, bytes_max=OPENED_BYTES_MAX):
                if offset >= start and record.timestamp_ms >= timestamp_ms:
                    return offset
            position += at + size

    def _sealed(self, opened: Opened) -> bool:
        """Whether its indexes are whole: they are before the next segment gets its first batch."""
        if opened.following is None:
            return False
        path = segment_path(self.directory, opened.following, ".log")
        try:
            return self.files.stat(path)[0] > 0
        except FileNotFoundError as error:
            raise Swapping from error

    def cuts(self, offset: Offset, limit: Offset, bytes_wanted: int) -> list[tuple[Offset, int]]:
        """Where to cut a range into parts of about this size: (offset, bytes before it)."""
        parts = Parts(bytes_wanted, limit)
        bases = self.bases()
        for base, following in zip_longest(bases, bases[1:], fillvalue=_OFFSET_MAX):
            if base >= limit:
                break
            if following <= offset:
                continue
            if base > offset:
                parts.reach(base, 0)
            try:
                file = self.files.open(segment_path(self.directory, base, ".log"), writable=False)
            except FileNotFoundError as error:
                raise Swapping from error
            try:
                self._cut(file, base, max(base, offset), parts)
            finally:
                file.close()
        return parts.found

    def _cut(self, file: Handle, base: Offset, offset: Offset, parts: Parts) -> None:
        """Go through one segment: by its index as far as that goes, then from batch to batch."""
        size = self.files.size(file)
        index = self.index(base)
        if not index.sound(size):
            index = OffsetIndex()
        position, offset = parts.hop(index, base, offset)
        while position < size and offset < parts.limit:
            data = self.files.read(file, _WALK_BYTES, position)
            moved, offset = parts.walk(data, offset)
            if not moved:
                return
            position += moved


class SegmentFeed:
    """Implements `Feed` on segment files."""

    def __init__(
        self, partition: PartitionReader, offset: Offset, limit: Offset, *, bytes_max: int
    ) -> None:
        """`limit` must not lie behind the stable mark."""
        self._partition = partition
        self._cursor = offset
        self._limit = limit
        self._bytes_max = bytes_max
        self._buffer = bytearray(bytes_max)
        self._opened: Opened | None = None
        self._position = 0
        self._stuck_at = -1
        self.read_bytes = 0

    def close(self) -> None:
        if self._opened is not None:
            self._opened.file.close()
            self._opened = None

    def read(self) -> Piece | None:
        """As `Feed`; raises `Swapping` while a segment is being exchanged: then ask again."""
        while self._cursor < self._limit:
            if self._opened is None:
                self._open()
            piece = self._next()
            if piece is not None:
                return piece
        self.close()
        return None

    def _open(self) -> None:
        try:
            self._opened = self._partition.open_segment(self._cursor)
        except Gone as gone:
            behind = min(gone.behind, self._limit)
            first, self._cursor = self._cursor, behind
            raise Gone(first, behind, gone.why) from gone
        # After it was opened: what was opened earlier may be deleted, but is not exchanged.
        self._partition.check(self._limit)
        self._position = self._partition.find(self._opened, self._cursor)

    def _next(self) -> Piece | None:
        """Whole batches from where we are; None if this segment has no more."""
        opened = self._opened
        assert opened is not None
        files = self._partition.files
        view = memoryview(self._buffer)
        count = files.read_into(opened.file, view, self._position)
        self.read_bytes += count
        end, next_offset = kernels.fit_batches(view, 0, count, count, self._limit)
        if max(next_offset, self._cursor) < self._limit:
            at, size, base, behind = kernels.locate_offset(view, end, count, self._cursor)
            if at == end and base < self._limit <= behind and at + size <= count:
                # The batch across the limit comes as well: those who read skip the rest of it.
                end, next_offset = at + size, behind
            elif at == 0 and base >= self._limit:
                self._skip(self._limit, "its bytes are damaged or were given up")
                return None
        if end:
            self._position += end
            self._cursor = max(self._cursor, next_offset)
            self._stuck_at = -1
            return Piece(view[:end], next_offset, opened.aborted)
        if count >= _HEADER_BYTES:
            self._look_closer(view, count)
            return None
        self._leave(opened)
        return None

    def _look_closer(self, view: memoryview, count: int) -> None:
        """The first batch is larger than the buffer, or damaged."""
        opened = self._opened
        assert opened is not None
        header = kernels.batch_header(view, 0)
        left = self._partition.files.size(opened.file) - self._position
        if header.magic == 2 and count < header.size <= left:
            self._buffer = bytearray(header.size)
            return
        following = self._batch_behind(opened, header.size, left)
        if following is None:
            self._leave(opened)
            return
        self._position, offset = following
        self._skip(offset, "its bytes are damaged")

    def _batch_behind(self, opened: Opened, size: int, left: int) -> tuple[int, Offset] | None:
        """Position and offset of the next sound batch behind a damaged one.

        It is where the damaged one ends, or where the index knows a batch; it is not searched
        for, because a value may hold whole batches.
        """
        files, start = self._partition.files, self._position
        known = self._partition.index(opened.base)
        positions = [start + size] if size >= _HEADER_BYTES else []
        if known.sound(start + left):
            positions += known.positions[bisect_right(known.positions, start) :]
        for position in positions:
            head = files.read(opened.file, _HEADER_BYTES, position)
            if len(head) < _HEADER_BYTES:
                continue
            header = kernels.batch_header(head, 0)
            if _HEADER_BYTES <= header.size <= start + left - position:
                data = files.read(opened.file, header.size, position)
                if is_sound(data, 0, self._cursor, _OFFSET_MAX):
                    return position, header.base_offset
        return None

    def _leave(self, opened: Opened) -> None:
        """Go on in the segment behind this one."""
        self.close()
        if opened.following is not None:
            if opened.following > self._cursor:
                self._skip(opened.following, "its bytes are damaged or were given up")
            return
        if self._stuck_at == self._cursor:
            first, self._cursor = self._cursor, self._limit
            raise DirectoryUnreadable(
                f"the files of {self._partition.at} end at offset {first}, its marks say"
                f" {self._limit}: start a broker on the directory once, it has the rest"
            )
        self._stuck_at = self._cursor

    def _skip(self, behind: Offset, why: str) -> None:
        first, self._cursor = self._cursor, min(behind, self._limit)
        if not self._partition.compacted and first < self._cursor:
            raise Gone(first, self._cursor, f"{self._partition.at}: {why}")

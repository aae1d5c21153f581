"""One `.log` file and its indexes: append, find, cut.

A segment holds record batches exactly as they were on the wire, one behind the other; its name
is the offset of its first record.  Bytes this process did not write itself are not believed
until they have been inspected, which happens window by window when they are first read.
Not thread-safe: one owner.
"""

from __future__ import annotations

import contextlib
import errno
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from pentalog import kernels
from pentalog.kernels import BatchHeader, Facts, Scan
from pentalog.log.files import Files, Handle
from pentalog.log.index import OffsetIndex, TimeIndex, read_entries, read_newest
from pentalog.log.inspection import (
    AT_REST,
    OFFSET_MAX,
    Care,
    Damage,
    Inspection,
    damage_at,
    damage_from,
    inspect,
)
from pentalog.log.residents import Residents
from pentalog.log.windows import Windows

SUFFIXES: Final = (".log", ".index", ".timeindex", ".txnindex")
DELETED: Final = ".deleted"

WALK_BYTES: Final = 16 << 10
_WRONG_ENTRIES_MAX: Final = 16
"""Index entries in a row that do not lead to their batches, before the index is rebuilt."""
HEADER_BYTES: Final = 61


class Cold(Exception):
    """The bytes are not in memory: bring them in from another thread and ask again."""

    def __init__(self, file: Handle, position: int, length: int) -> None:
        super().__init__()
        self.file = file
        self.position = position
        self.length = length


class Found(NamedTuple):
    """A batch boundary."""

    position: int
    offset: int
    """Base offset of the batch there, or the next one to be written."""


class Point(NamedTuple):
    """A batch boundary: its offset, and where it lies."""

    offset: int
    base: int
    position: int


def segment_path(directory: Path, base_offset: int, suffix: str) -> Path:
    return directory / f"{base_offset:020d}{suffix}"


class Segment:
    def __init__(
        self, files: Files, directory: Path, base_offset: int, residents: Residents, *, size: int
    ) -> None:
        self.files = files
        self.directory = directory
        self.base_offset = base_offset
        self.size = size
        self.next_offset = base_offset
        self.timestamp_max = -1
        self.timestamp_max_offset = -1
        self.timestamp_first = -1
        self.newest_confirmed = False
        """Does `timestamp_max` come from the batches themselves?"""
        self.index_interval = 4096
        self.active = False
        self.damages: list[Damage] = []
        self.report: Callable[[Damage], None] = _unreported
        self.gaps = False
        self._residents = residents
        self._file: Handle | None = None
        self._index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._entries_persisted = 0
        self._time_entries_persisted = 0
        self._bytes_since_entry = 0
        self.trusted_from = size
        """What lies behind was written, or inspected, by this process."""
        self._windows: Windows | None = None
        self._closed = False
        self._ragged = False
        """A failed write left bytes behind the end that could not be cut off yet."""

    def path(self, suffix: str) -> Path:
        return segment_path(self.directory, self.base_offset, suffix)

    @property
    def indexes(self) -> tuple[Path, Path]:
        """Files that are synced with a sealed segment: retention believes the times they tell."""
        return self.path(".index"), self.path(".timeindex")

    @property
    def file(self) -> Handle:
        if self._file is None:
            if self._closed:
                # Its topic was deleted: the same path may be that of another one by now.
                raise FileNotFoundError(errno.ENOENT, "closed", str(self.path(".log")))
            self._file = self.files.open(self.path(".log"), create=self.active)
        if not self.active:
            self._residents.touch(self)
        return self._file

    @property
    def index(self) -> OffsetIndex:
        if self._index is None:
            self._load_indexes()
        assert self._index is not None
        return self._index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._load_indexes()
        assert self._time_index is not None
        return self._time_index

    def release(self) -> None:
        """Let go of the file and of what can be read again."""
        if not self.active:
            self._file = None
            self._index = None
            self._time_index = None

    def start_new(self) -> None:
        """Become the (empty) active segment; raises OSError and leaves no files if that fails."""
        self.active = True
        self.newest_confirmed = True
        self._index = OffsetIndex()
        self._time_index = TimeIndex()
        try:
            self.files.truncate(self.file, 0)
            for suffix in (".index", ".timeindex"):
                file = self.files.open(self.path(suffix), create=True)
                try:
                    self.files.truncate(file, 0)
                finally:
                    file.close()
        except OSError:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove the files of a segment begun in vain; the next start removes what stays."""
        self._file = None
        for suffix in SUFFIXES:
            with contextlib.suppress(OSError):
                self.files.remove(self.path(suffix))

    # Writing

    def append(self, batches: memoryview, facts: Facts, next_offset: int) -> None:
        """Write stamped batches behind the last; raises OSError and changes nothing if it fails."""
        position = self.size
        size = len(batches)
        assert self.active
        if self._ragged:
            self._trim_rest()
        try:
            self.files.write(self.file, batches, position)
        except OSError:
            # A shorter batch written here next must not be followed by what this one left.
            self._ragged = True
            with contextlib.suppress(OSError):
                self._trim_rest()
            raise
        self._note(batches, facts, next_offset, position)
        self.size = position + size
        self.next_offset = next_offset

    def _trim_rest(self) -> None:
        self.files.truncate(self.file, self.size)
        self._ragged = False

    def _note(self, batches: memoryview, facts: Facts, next_offset: int, position: int) -> None:
        if facts.batches > 1:
            scan = kernels.scan_batches(
                batches,
                0,
                len(batches),
                file_position=position,
                segment_base=self.base_offset,
                next_offset=self.next_offset,
                index_interval=self.index_interval,
                bytes_since_entry=self._bytes_since_entry,
                timestamp_max=self.timestamp_max,
                timestamp_max_offset=self.timestamp_max_offset,
                timestamp_entered=self.time_index.newest,
                verify=False,
                producers=False,
            )
            assert scan.flaw == 0
            self._take(scan)
            return
        if facts.timestamp_max > self.timestamp_max:
            self.timestamp_max = facts.timestamp_max
            self.timestamp_max_offset = next_offset - 1
        if self.timestamp_first < 0:
            self.timestamp_first = facts.timestamp_max
        if self._bytes_since_entry > self.index_interval:
            self.index.append(next_offset - 1 - self.base_offset, position)
            self.time_index.append(self.timestamp_max, self.timestamp_max_offset - self.base_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += len(batches)

    def _take(self, scan: Scan) -> None:
        self.index.extend(scan.entries)
        self.time_index.extend(scan.time_entries)
        if self.timestamp_first < 0:
            self.timestamp_first = scan.timestamp_max
        self.timestamp_max = scan.timestamp_max
        self.timestamp_max_offset = scan.timestamp_max_offset
        self._bytes_since_entry = scan.bytes_since_entry

    def index_full(self, index_bytes_max: int) -> bool:
        return len(self.index) * OffsetIndex.entry_bytes >= index_bytes_max

    def persist_indexes(self) -> None:
        """Bring the index files up to date."""
        if self._index is None or self._time_index is None:
            return
        for suffix, entries, done in (
            (".index", self._index, self._entries_persisted),
            (".timeindex", self._time_index, self._time_entries_persisted),
        ):
            fresh = entries.packed(done)
            file = self.files.open(self.path(suffix), create=True)
            try:
                self.files.write(file, fresh, done * entries.entry_bytes)
                self.files.truncate(file, len(entries) * entries.entry_bytes)
            finally:
                file.close()
        self._entries_persisted = len(self._index)
        self._time_entries_persisted = len(self._time_index)

    def seal(self) -> None:
        """No more batches will come."""
        if self._ragged:
            self._trim_rest()
        self._enter_newest()
        self.persist_indexes()
        self.active = False
        self._residents.touch(self)

    def _enter_newest(self) -> None:
        """The last entry of a sealed segment has the newest time."""
        if self.timestamp_max >= 0:
            self.time_index.append(self.timestamp_max, self.timestamp_max_offset - self.base_offset)

    # Opening

    def _load_indexes(self) -> None:
        if not self.active:
            self._residents.touch(self)
        index, time_index = self.read_index_files()
        if index is None or time_index is None:
            index, time_index = self.rebuild()
        self._index, self._time_index = index, time_index
        self._entries_persisted = len(index)
        self._time_entries_persisted = len(time_index)

    def read_index_files(self) -> tuple[OffsetIndex | None, TimeIndex | None]:
        """The indexes as they lie on disk; None for one that is missing or cannot be right."""
        # At most one entry per batch, and one more at a segment's end.
        entries_max = self.size // HEADER_BYTES + 1
        index, time_index = OffsetIndex(), TimeIndex()
        packed = read_entries(self.files, self.path(".index"), index.entry_bytes, entries_max)
        times = read_entries(
            self.files, self.path(".timeindex"), time_index.entry_bytes, entries_max
        )
        index.extend(packed or b"")
        time_index.extend(times or b"")
        return (
            index if packed is not None and index.sound(self.size) else None,
            time_index if times is not None and time_index.sound() else None,
        )

    def rebuild(self) -> tuple[OffsetIndex, TimeIndex]:
        found = self.inspect_from(0, self.base_offset, offset_max=self.next_offset - 1)
        index, time_index = OffsetIndex(), TimeIndex()
        for scan in found.scans:
            index.extend(scan.entries)
            time_index.extend(scan.time_entries)
        if found.scans and not self.active:
            last = found.scans[-1]
            time_index.append(last.timestamp_max, last.timestamp_max_offset - self.base_offset)
        self.newest_confirmed = True
        self.damages = list(found.damages)
        if found.end < self.size:
            self.damages.append(Damage(found.end, self.size, found.next_offset, self.next_offset))
        self.trusted_from = 0
        self._index, self._time_index = index, time_index
        self._entries_persisted = self._time_entries_persisted = 0
        self.persist_indexes()
        return index, time_index

    def index_headers(self, start: int, end: int) -> Scan | None:
        """Index the batches between two boundaries by their headers; checksums are not verified.

        Returns None if a header is damaged.
        """
        with self._mapped(start) as view:
            scan = kernels.scan_batches(
                view,
                start,
                end,
                file_position=start,
                segment_base=self.base_offset,
                next_offset=self.base_offset,
                index_interval=self.index_interval,
                bytes_since_entry=0,
                timestamp_max=-1,
                timestamp_max_offset=-1,
                verify=False,
                producers=False,
                gaps=self.gaps or start > 0,
            )
        return scan if scan.position == end else None

    def inspect_from(
        self,
        position: int,
        next_offset: int,
        *,
        before: Scan | None = None,
        offset_max: int = OFFSET_MAX,
        care: Care = AT_REST,
    ) -> Inspection:
        """Check every batch from a boundary to the end of the file.

        `before` is the scan of the batches before that boundary.
        """
        with self._mapped(position) as view:
            return inspect(
                view[position : self.size],
                file_position=position,
                segment_base=self.base_offset,
                next_offset=next_offset,
                offset_max=offset_max,
                index_interval=self.index_interval,
                timestamp_max=-1 if before is None else before.timestamp_max,
                timestamp_max_offset=-1 if before is None else before.timestamp_max_offset,
                timestamp_entered=-1 if before is None else before.timestamp_entered,
                bytes_since_entry=0 if before is None else before.bytes_since_entry,
                gaps=self.gaps,
                care=care,
            )

    @contextlib.contextmanager
    def _mapped(self, position: int) -> Iterator[memoryview]:
        mapped = self.files.map(self.file, position)
        view = memoryview(mapped)
        try:
            yield view
        finally:
            view.release()
            if not isinstance(mapped, bytes):
                mapped.close()

    def adopt(self, before: Scan | None, found: Inspection, *, from_position: int) -> None:
        """Take over an inspection that began at `from_position`, and the headers before that.

        Both indexes are rebuilt: their files are not synced, so a power cut may leave old ones.
        """
        self._index, self._time_index = OffsetIndex(), TimeIndex()
        self.timestamp_max = self.timestamp_max_offset = -1
        for scan in (*([] if before is None else [before]), *found.scans):
            self._take(scan)
        if not self.active:
            self._enter_newest()
        self.damages += found.damages
        self.next_offset = found.next_offset
        self.trusted_from = from_position
        self.newest_confirmed = True
        self._entries_persisted = self._time_entries_persisted = 0
        self.persist_indexes()

    def note_first_timestamp(self) -> None:
        """From which on the segment's age counts."""
        if self.size >= HEADER_BYTES:
            self.timestamp_first = self.header_at(0).max_timestamp

    def cut(self, position: int) -> None:
        """Drop everything from `position` on, for good."""
        self.files.truncate(self.file, position)
        self.files.sync(self.file)
        self.size = position

    # Finding

    def trust(self, position: int, end: int, *, patient: bool) -> None:
        """Make sure that damage in a range is known; raises Cold if that means waiting."""
        if position >= self.trusted_from or position >= end:
            return
        if self._windows is None:
            self._windows = Windows(self)
        self._windows.inspect(position, end, patient=patient)
        if self._windows.complete:
            self.trusted_from = 0

    def read(self, position: int, length: int, *, patient: bool) -> bytes:
        file = self.file
        if (
            not patient
            and position < self.trusted_from
            and not self.files.cached(file, position, length)
        ):
            raise Cold(file, position, length)
        return self.files.read(file, length, position)

    def find(self, offset: int, *, patient: bool) -> Found | None:
        """The first sound batch that holds `offset` or a later one; None: not in this segment."""
        position = self._walk_from(offset, patient=patient)
        while position < self.size:
            damage = damage_at(self.damages, position)
            if damage is not None:
                position = damage.end
                continue
            end = min(position + WALK_BYTES, self.sound_until(position))
            self.trust(position, end, patient=patient)
            if damage_at(self.damages, position) is not None:
                continue
            end = min(end, self.sound_until(position))
            data = self.read(position, max(HEADER_BYTES, end - position), patient=patient)
            at, stopped, base, _ = kernels.locate_offset(data, 0, len(data), offset)
            if at >= 0:
                return Found(position + at, base)
            if stopped <= 0:
                raise AssertionError(f"{self.path('.log')} has no batch at {position}")
            position += stopped
        return None

    def _walk_from(self, offset: int, *, patient: bool) -> int:
        """Where to begin a walk to an offset: the nearest sound batch that the index leads to."""
        index = self.index
        wrong = 0
        for number in range(bisect_right(index.offsets, offset - self.base_offset) - 1, -1, -1):
            position = index.positions[number]
            self.trust(position, min(self.size, position + WALK_BYTES), patient=patient)
            damage = damage_at(self.damages, position)
            if damage is None:
                if self.entry_header(index, number) is not None:
                    return position
                wrong += 1
            elif damage.end < self.size and damage.next_offset <= offset:
                return damage.end
            if wrong == _WRONG_ENTRIES_MAX:
                self.rebuild()
                return self._walk_from(offset, patient=patient)
        return 0

    def entry_header(self, index: OffsetIndex, number: int) -> BatchHeader | None:
        """Return the header of the batch that an index entry names; None if it is not there."""
        position = index.positions[number]
        data = self.files.read(self.file, HEADER_BYTES, position)
        if len(data) < HEADER_BYTES:
            return None
        header = kernels.batch_header(data, 0)
        last = header.base_offset + header.last_offset_delta - self.base_offset
        named = last == index.offsets[number] and header.last_offset_delta >= 0
        return header if named and header.magic == 2 else None

    def checked_position(self, number: int, least: int = 0) -> int:
        """Return the position of an index entry, or of an earlier one that leads to its batch.

        `least` is a known boundary: it is returned if no entry after it is right.
        """
        positions = self.index.positions
        for entry in range(number, max(number - _WRONG_ENTRIES_MAX, -1), -1):
            if positions[entry] <= least:
                break
            if self.entry_header(self.index, entry) is not None:
                return positions[entry]
        return least

    def position_near(self, offset: int) -> int:
        """A batch boundary at or before the batch that holds an offset."""
        number = bisect_right(self.index.offsets, offset - self.base_offset) - 1
        return self.checked_position(number)

    def sound_until(self, position: int) -> int:
        damage = damage_from(self.damages, position)
        return self.size if damage is None else damage.start

    def boundary(self, start: int, limit: int, *, patient: bool) -> Found:
        """The last batch boundary in `start..limit`; `start` is one and is sound."""
        position = self.checked_position(bisect_right(self.index.positions, limit) - 1, start)
        offset = -1
        while position < limit:
            data = self.read(position, min(WALK_BYTES, limit - position), patient=patient)
            if len(data) < HEADER_BYTES:
                break
            header = kernels.batch_header(data, 0)
            if position + header.size > limit:
                break
            fits, after = kernels.fit_batches(data, 0, len(data), limit - position, 1 << 62)
            if fits > 0:
                position, offset = position + fits, after
            else:
                position += header.size
                offset = header.base_offset + header.last_offset_delta + 1
        if offset < 0 and position > start:
            offset = self.header_at(position).base_offset  # the index alone led here
        return Found(position, offset)

    @property
    def newest_timestamp(self) -> int:
        """The largest timestamp in the segment, -1 if it has none."""
        if self.timestamp_max < 0 and not self.active and self.size:
            self.timestamp_max = self._newest_on_disk()
        return self.timestamp_max

    def _newest_on_disk(self) -> int:
        """A sealed segment's newest time, if possible without loading the index."""
        newest = -1
        if self._time_index is None:
            newest = read_newest(self.files, self.path(".timeindex"))
        if newest < 0:
            newest = self.time_index.newest
        if newest < self.header_at(0).max_timestamp:
            newest = self.rebuild()[1].newest
        return newest

    def header_at(self, position: int) -> BatchHeader:
        return kernels.batch_header(self.files.read(self.file, HEADER_BYTES, position), 0)

    def read_batch(self, position: int, *, patient: bool) -> bytes:
        return self.read(position, self.header_at(position).size, patient=patient)

    # Leaving

    def mark_deleted(self) -> None:
        """Out of the log; readers that hold it may finish, and a restart removes it.

        Raises OSError if the segment is still in the log; its indexes mean nothing without it.
        """
        first, *beside = SUFFIXES
        self.files.rename(self.path(first), self.path(first + DELETED))
        self._residents.leave(self)
        self._file = None
        for suffix in beside:
            if self.files.exists(path := self.path(suffix)):
                with contextlib.suppress(OSError):
                    self.files.rename(path, self.path(suffix + DELETED))

    def remove(self) -> None:
        for suffix in SUFFIXES:
            self.files.remove(self.path(suffix + DELETED))

    def remove_files(self) -> None:
        for suffix in SUFFIXES:
            self.files.remove(self.path(suffix))

    def close(self) -> None:
        self._residents.leave(self)
        self._file = None
        self._closed = True


def _unreported(_: Damage) -> None: ...

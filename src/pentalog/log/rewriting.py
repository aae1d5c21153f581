"""Write segments anew with only the newest record of each key.

Runs on a thread: it sees files and what was captured for it, never the partition itself.  What
it leaves are `.cleaned` files; whether they replace anything is decided elsewhere (swap.py).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from pentalog import kernels
from pentalog.kernels import BatchHeader, Buffer, Malformed
from pentalog.log import transactions
from pentalog.log.admission import OPENED_BYTES_MAX
from pentalog.log.files import Files, Handle
from pentalog.log.index import OffsetIndex, TimeIndex
from pentalog.log.inspection import Damage, inspect, walk
from pentalog.log.segment import segment_path
from pentalog.log.swap import CLEANED
from pentalog.log.transactions import AbortedTransaction
from pentalog.model import batch as batches_of
from pentalog.model import compression
from pentalog.model.batch import (
    APPEND_TIME,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    TRANSACTIONAL,
)
from pentalog.model.errors import BrokerError

_WINDOW_BYTES: Final = 64 << 10
"""Read at once: between two reads the interpreter is free for the others."""
_CHUNK_BYTES: Final = 1 << 20
_KEY_OVERHEAD_BYTES: Final = 160
"""What a key and its offset take in a dictionary besides the key's own bytes."""
_RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1
_I64_MAX: Final = (1 << 63) - 1
_SEGMENT_BYTES_MAX: Final = (1 << 31) - 1
"""What positions in an index can point at."""


class Abandoned(Exception):
    """Nobody wants the result any more."""


class Source(NamedTuple):
    base_offset: int
    next_offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything that was captured of a partition."""

    files: Files
    directory: Path
    sources: Sequence[Source]
    """Neighbours, from the log's start on."""
    start_offset: int
    first_dirty: int
    """What lies before has been compacted already."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    aborted: Sequence[AbortedTransaction]
    producers: Mapping[int, int]
    """Last offset of the last batch of each producer that is remembered."""
    newest_bytes_max: int
    """Memory that keys may take; what does not fit is left for the next time."""
    abandoned: Callable[[], bool]


class Output(NamedTuple):
    """A new segment, complete in its `.cleaned` files."""

    sources: tuple[int, ...]
    """Base offsets of what it is made of; the first is its own."""
    next_offset: int
    size: int
    timestamp_max: int
    timestamp_max_offset: int


class Rewritten(NamedTuple):
    outputs: list[Output]
    clean_offset: int
    """Everything before is compacted once the outputs are in place."""
    records_dropped: int


def rewrite(job: Job) -> Rewritten:
    """Raises OSError, or Abandoned; then some `.cleaned` files may be left over."""
    aborted = _ranges(job.aborted)
    newest, clean_offset = _newest_offsets(job, aborted)
    sieve = _Sieve(job, aborted, newest, clean_offset)
    outputs: list[Output] = []
    draft: _Draft | None = None
    for source in job.sources:
        if source.base_offset >= clean_offset:
            break
        if draft is not None and not draft.has_room(source):
            outputs += draft.finish(job, clean_offset)
            draft = None
        if draft is None:
            draft = _Draft(job, source.base_offset)
        draft.begin(source)
        for header, data, position in _sound_batches(job, source):
            draft.unread_bytes -= header.size
            kept = sieve.kept(header, data, position, draft.room_bytes)
            if kept is not None:
                draft.add(kept)
    if draft is not None:
        outputs += draft.finish(job, clean_offset)
    return Rewritten(outputs, clean_offset, sieve.dropped)


# What is newest


def _ranges(aborted: Sequence[AbortedTransaction]) -> dict[int, list[tuple[int, int]]]:
    """First and last offset of every aborted transaction, by producer."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for entry in aborted:
        ranges.setdefault(entry.producer_id, []).append((entry.first_offset, entry.last_offset))
    return ranges


def _is_aborted(header: BatchHeader, aborted: Mapping[int, list[tuple[int, int]]]) -> bool:
    if not header.attributes & TRANSACTIONAL or header.attributes & CONTROL:
        return False
    return any(
        first <= header.base_offset <= last for first, last in aborted.get(header.producer_id, ())
    )


def _newest_offsets(
    job: Job, aborted: Mapping[int, list[tuple[int, int]]]
) -> tuple[dict[bytes, int], int]:
    """The newest offset of each key that is dirty, and up to where the memory sufficed."""
    newest: dict[bytes, int] = {}
    used_bytes = 0
    for source in job.sources:
        if source.next_offset <= job.first_dirty:
            continue
        for header, data, position in _sound_batches(job, source):
            last_offset = header.base_offset + header.last_offset_delta
            if (
                last_offset < job.first_dirty
                or header.attributes & CONTROL
                or _is_aborted(header, aborted)
            ):
                continue
            fresh = _keys(header, data, position)
            known = len(newest)
            newest.update(fresh)
            if len(newest) > known:
                # Which of them were new is not worth finding out: by their mean size.
                mean_bytes = sum(map(len, fresh)) // len(fresh) + _KEY_OVERHEAD_BYTES
                used_bytes += (len(newest) - known) * mean_bytes
            if used_bytes > job.newest_bytes_max:
                return newest, last_offset + 1
    return newest, job.sources[-1].next_offset


def _keys(header: BatchHeader, data: Buffer, position: int) -> dict[bytes, int]:
    """Nothing of a batch that cannot be opened: it must not outdate what can be read."""
    fresh: dict[bytes, int] = {}
    try:
        payload, _ = batches_of.payload_of(data, position, bytes_max=OPENED_BYTES_MAX)
        kernels.newest_keys(payload, 0, len(payload), header.records, header.base_offset, fresh)
    except (BrokerError, Malformed):
        return {}
    return fresh


class _Sieve:
    """Decides what of a batch stays."""

    def __init__(
        self,
        job: Job,
        aborted: Mapping[int, list[tuple[int, int]]],
        newest: dict[bytes, int],
        clean_offset: int,
    ) -> None:
        self._job = job
        self._aborted = aborted
        self._newest = newest
        self._clean_offset = clean_offset
        self.dropped = 0
        """Records that did not stay."""

    def kept(
        self, header: BatchHeader, data: bytes, position: int, bytes_max: int
    ) -> memoryview | bytearray | None:
        """The batch as it is, or rebuilt with fewer records; None if no record of it stays.

        `bytes_max` bounds a batch that becomes larger than it was.
        """
        whole = memoryview(data)[position : position + header.size]
        last_offset = header.base_offset + header.last_offset_delta
        if header.attributes & CONTROL or header.base_offset >= self._clean_offset:
            return whole
        if (
            not header.records
            or last_offset < self._job.start_offset
            or _is_aborted(header, self._aborted)
        ):
            return self._emptied(header, last_offset, whole)
        try:
            payload, _ = batches_of.payload_of(data, position, bytes_max=OPENED_BYTES_MAX)
            kept, records, timestamp_max = kernels.keep_newest(
                payload,
                0,
                len(payload),
                header.records,
                header.base_offset,
                header.base_timestamp,
                self._newest,
                drop_tombstones=self._tombstones_are_over(header, last_offset),
            )
        except (BrokerError, Malformed):
            return whole
        if not records:
            return self._emptied(header, last_offset, whole)
        self.dropped += header.records - records
        made = self._with_horizon(header, kept, records, timestamp_max)
        if made is not None and len(made) <= max(bytes_max, header.size):
            return made
        if records == header.records:
            return whole
        return _rebuilt(header, kept, records, timestamp_max)

    def _with_horizon(
        self, header: BatchHeader, kept: Buffer, records: int, timestamp_max: int
    ) -> bytearray | None:
        """The batch with the time from which its tombstones may go.

        None if it has that already, or has no tombstones.  The time counts from the first
        compaction that meets a tombstone, not from the time its producer gave it: consumers
        have until then to see it, also if it is backdated.
        """
        if header.attributes & DELETE_HORIZON:
            return None
        horizon_ms = self._job.now_ms + self._job.delete_retention_ms
        later = header.base_timestamp - horizon_ms
        if max(horizon_ms, -later) > _I64_MAX:
            return None  # tombstones are to stay for longer than there are times
        shifted = kernels.shift_tombstones(kept, 0, len(kept), records, later)
        if shifted is None:
            return None
        attributes = header.attributes | DELETE_HORIZON
        header = header._replace(base_timestamp=horizon_ms, attributes=attributes)
        return _rebuilt(header, shifted, records, timestamp_max)

    def _tombstones_are_over(self, header: BatchHeader, last_offset: int) -> bool:
        # What is dirty has not been through a compaction: older values may still be there.
        if last_offset >= self._job.first_dirty:
            return False
        over = header.base_timestamp <= self._job.now_ms
        return bool(header.attributes & DELETE_HORIZON) and over

    def _emptied(
        self, header: BatchHeader, last_offset: int, whole: memoryview
    ) -> memoryview | bytearray | None:
        """A batch without records where its offsets are still needed.

        The last batch of a producer tells its sequence; the last of all leads readers on to the
        offset behind it.
        """
        self.dropped += header.records
        needed = (
            header.producer_id >= 0 and self._job.producers.get(header.producer_id) == last_offset
        ) or last_offset + 1 == self._job.sources[-1].next_offset
        if not needed:
            return None
        if not header.records:
            return whole
        return batches_of.rebuild(header, b"", count=0, codec=compression.NONE)


def _rebuilt(header: BatchHeader, kept: Buffer, records: int, timestamp_max: int) -> bytearray:
    return batches_of.rebuild(
        header,
        kept,
        count=records,
        codec=header.attributes & CODEC_MASK,
        max_timestamp=None if header.attributes & APPEND_TIME else timestamp_max,
    )


# Reading


def _sound_batches(job: Job, source: Source) -> Iterator[tuple[BatchHeader, bytes, int]]:
    """Every batch whose checksum and offsets hold, as (header, bytes, position in them)."""
    file = job.files.open(segment_path(job.directory, source.base_offset, ".log"), writable=False)
    try:
        position, next_offset = 0, source.base_offset
        damages: list[Damage] = []
        wanted = _WINDOW_BYTES
        # Where nothing has been compacted yet a missing offset means damage; see inspection.py.
        gaps = source.base_offset < job.first_dirty
        while position < source.size:
            if job.abandoned():
                raise Abandoned
            limit = damages[0].start if damages else source.size
            if position >= limit:
                position, next_offset = damages[0].end, damages[0].next_offset
                del damages[0]
                continue
            data = _read(job.files, file, position, min(wanted, limit - position))
            found = walk(
                data,
                source.base_offset,
                next_offset,
                file_position=position,
                offset_max=source.next_offset - 1,
                gaps=gaps,
            )
            yield from _batches(data, found.position)
            position, next_offset = position + found.position, found.next_offset
            wanted = _WINDOW_BYTES
            if found.flaw == kernels.FLAW_SHORT and position + len(data) - found.position < limit:
                wanted = max(wanted, _claimed_size(data, found.position))
                if wanted <= limit - position:
                    continue
            if found.flaw:
                damages = _damages(job.files, file, source, position, next_offset, gaps=gaps)
                assert not gaps or damages[0].start == position, "both go by the same rules"
                gaps = True
                wanted = _WINDOW_BYTES
    finally:
        file.close()


def _read(files: Files, file: Handle, position: int, size: int) -> bytes:
    data = files.read(file, size, position)
    if len(data) < size:
        raise OSError(errno.EIO, "the file is shorter than it was", str(file.path))
    return data


def _batches(data: bytes, end: int) -> Iterator[tuple[BatchHeader, bytes, int]]:
    position = 0
    while position < end:
        header = kernels.batch_header(data, position)
        yield header, data, position
        position += header.size


def _claimed_size(data: bytes, position: int) -> int:
    if len(data) - position < HEADER_BYTES:
        return 0
    return kernels.batch_header(data, position).size


def _damages(
    files: Files, file: Handle, source: Source, position: int, next_offset: int, *, gaps: bool
) -> list[Damage]:
    """All damage from a position on, by the rules the log itself goes by."""
    mapped = files.map(file, position)
    view = memoryview(mapped)
    try:
        found = inspect(
            view[position : source.size],
            file_position=position,
            segment_base=source.base_offset,
            next_offset=next_offset,
            offset_max=source.next_offset - 1,
            gaps=gaps,
        )
    finally:
        view.release()
        if not isinstance(mapped, bytes):
            mapped.close()
    damages = list(found.damages)
    if found.end < source.size:
        damages.append(Damage(found.end, source.size, found.next_offset, source.next_offset))
    return damages


# Writing


class _Draft:
    """A segment in the making: its log and its indexes."""

    def __init__(self, job: Job, base_offset: int) -> None:
        self._files = job.files
        self._directory = job.directory
        self._base_offset = base_offset
        self._segment_bytes = job.segment_bytes
        self._index_interval = job.index_interval_bytes
        self._sources: list[Source] = []
        self._size = 0
        self._copied_bytes = 0
        self.unread_bytes = 0
        """Of the source that is being read."""
        self._next_offset = base_offset
        self._pending = bytearray()
        self._index = OffsetIndex()
        self._time_index = TimeIndex()
        self._bytes_since_entry = 0
        self._timestamp_max = -1
        self._timestamp_max_offset = -1
        self._file = self._open(".log")

    def _open(self, suffix: str) -> Handle:
        path = segment_path(self._directory, self._base_offset, suffix + CLEANED)
        file = self._files.open(path, create=True)
        self._files.truncate(file, 0)
        return file

    def has_room(self, source: Source) -> bool:
        """May a source join?  Only a batch that gets a delete horizon becomes larger."""
        return (
            self._size + len(self._pending) + source.size <= self._segment_bytes
            and source.next_offset - 1 - self._base_offset <= _RELATIVE_OFFSET_MAX
        )

    def begin(self, source: Source) -> None:
        self._sources.append(source)
        self.unread_bytes = source.size

    @property
    def room_bytes(self) -> int:
        """Bytes left for the batch that was read last, if the rest of its source stays as it is."""
        return _SEGMENT_BYTES_MAX - self._size - len(self._pending) - self.unread_bytes

    def add(self, batch: memoryview | bytearray) -> None:
        if isinstance(batch, memoryview):
            self._copied_bytes += len(batch)
        self._pending += batch
        if len(self._pending) >= _CHUNK_BYTES:
            self._write()

    def _write(self) -> None:
        """Write what is pending, and note it in the indexes."""
        pending = self._pending
        scan = kernels.scan_batches(
            pending,
            0,
            len(pending),
            file_position=self._size,
            segment_base=self._base_offset,
            next_offset=self._next_offset,
            index_interval=self._index_interval,
            bytes_since_entry=self._bytes_since_entry,
            timestamp_max=self._timestamp_max,
            timestamp_max_offset=self._timestamp_max_offset,
            timestamp_entered=self._time_index.newest,
            verify=True,
            producers=False,
            gaps=True,
        )
        assert scan.flaw == kernels.FLAW_NONE, "every batch was checked when it was read"
        self._files.write(self._file, pending, self._size)
        self._index.extend(scan.entries)
        self._time_index.extend(scan.time_entries)
        self._bytes_since_entry = scan.bytes_since_entry
        self._timestamp_max = scan.timestamp_max
        self._timestamp_max_offset = scan.timestamp_max_offset
        self._next_offset = scan.next_offset
        self._size += len(pending)
        self._pending = bytearray()

    def finish(self, job: Job, clean_offset: int) -> list[Output]:
        """Bring it to the disk; nothing if it would be what is there already."""
        if self._pending:
            self._write()
        if len(self._sources) == 1 and self._copied_bytes == self._sources[0].size:
            self._discard()
            return []
        self._files.sync(self._file)
        self._file.close()
        self._time_index.append(self._timestamp_max, self._timestamp_max_offset - self._base_offset)
        next_offset = self._sources[-1].next_offset
        aborted = [
            entry
            for entry in job.aborted
            if self._base_offset <= entry.last_offset < next_offset
            # The others have no records any more.
            and (entry.first_offset < self._base_offset or entry.last_offset >= clean_offset)
        ]
        self._write_beside(".index", self._index.packed())
        self._write_beside(".timeindex", self._time_index.packed())
        self._write_beside(".txnindex", transactions.pack(aborted))
        return [
            Output(
                tuple(source.base_offset for source in self._sources),
                next_offset,
                self._size,
                self._timestamp_max,
                self._timestamp_max_offset,
            )
        ]

    def _discard(self) -> None:
        self._file.close()
        self._files.remove(self._file.path)
        # Records elsewhere are dropped because of newer ones here: these must be on the disk.
        path = segment_path(self._directory, self._base_offset, ".log")
        source = self._files.open(path, writable=False)
        try:
            self._files.sync(source)
        finally:
            source.close()

    def _write_beside(self, suffix: str, data: bytes) -> None:
        file = self._open(suffix)
        try:
            self._files.write(file, data, 0)
            self._files.sync(file)
        finally:
            file.close()

"""Open a partition's directory: quickly after a clean stop, carefully after anything else.

After a crash the journal's entries are put back in their places first.  Then only what was not
known to be on the disk is read: from the recovery point on every checksum is verified, the log is
cut behind its last whole batch, and damage in its middle is reported and stepped over.  Offsets
that were ever known to be taken are never given again.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from pentalog import kernels
from pentalog.log import swap, transactions
from pentalog.log.inspection import OFFSET_MAX, Care, Damage, damage_at, damage_from
from pentalog.log.journal import Entry
from pentalog.log.partition import PartitionLog
from pentalog.log.producers import Producers, Written
from pentalog.log.replay import Replayed, replay
from pentalog.log.segment import HEADER_BYTES, Point, Segment, segment_path

log = logging.getLogger("pentalog.log")

_SEGMENT_NAME: Final = re.compile(r"(\d{20})\.log")
_SNAPSHOT_NAME: Final = re.compile(r"(\d{20})\.producers")
_REWRITE_BYTES: Final = 1 << 20


class CleanStop(NamedTuple):
    """What a clean stop said of a partition; all of it must still be so to be believed."""

    active_base: int
    active_size: int
    end_offset: int
    timestamp_max: int
    timestamp_max_offset: int


def clean_stop_of(partition: PartitionLog) -> CleanStop:
    """What a clean stop says of a partition as it is now."""
    active = partition.active
    return CleanStop(
        active.base_offset,
        active.size,
        active.next_offset,
        active.timestamp_max,
        active.timestamp_max_offset,
    )


def open_partition(
    partition: PartitionLog,
    stop: CleanStop | None,
    *,
    recovery_point: int,
    start_offset: int,
    compacted_offset: int = 0,
    entries: Sequence[Entry] = (),
) -> Generator[None, None, list[Entry]]:
    """Attach what lies in the partition's directory; `open_producers` is the second half.

    `entries` are what the journal has of it.  Yields after every segment that had to be read;
    returns the entries that cannot be applied.
    """
    files, directory = partition.files, partition.directory
    names = swap.tidy(files, directory)
    bases = [int(match[1]) for name in names if (match := _SEGMENT_NAME.fullmatch(name))]
    # Compaction moves batches, so an entry of a compacted segment names a position that holds
    # other batches now.  Recovery points say so too, but their file may be lost or damaged.
    synced_offset = max(recovery_point, compacted_offset)
    replayed = yield from replay(files, directory, entries, bases, synced_offset=synced_offset)
    segments = _without_empty([_segment(partition, base) for base in bases], stop)
    for segment, following in pairwise(segments):
        segment.next_offset = following.base_offset
    if segments:
        segments[-1].active = True
    partition.start_offset = max(start_offset, segments[0].base_offset if segments else 0)
    partition.attach(segments)
    if segments:
        yield from _open_segments(partition, stop, recovery_point, replayed)
    _skip_to_start(partition)
    end = partition.end
    partition.durable = end
    if stop is not None or not segments:
        partition.synced = end
    else:
        partition.synced = _point_at_most(partition, recovery_point)
    return replayed.rejected


def _without_empty(segments: list[Segment], stop: CleanStop | None) -> list[Segment]:
    """Remove segments that were begun and never written to: the roll was given up.

    The segment before such a one may hold its offsets.
    """
    kept: list[Segment] = []
    for segment in segments:
        last = segment is segments[-1]
        if (
            not segment.size
            and segments[0] is not segment
            and not (last and _was_active(segment, stop))
        ):
            segment.remove_files()
        else:
            kept.append(segment)
    return kept


def _skip_to_start(partition: PartitionLog) -> None:
    """Continue at the log start if the log lost its tail and ends below it.

    The offsets below the start belonged to deleted records and must not be reused.
    """
    start = partition.start_offset
    if partition.end_offset < start:
        log.warning(
            "%s: ends at offset %d, before its start %d; it goes on there",
            partition.name,
            partition.end_offset,
            start,
        )
        partition.skip_to(start)


def _was_active(segment: Segment, stop: CleanStop | None) -> bool:
    return stop is not None and stop.active_base == segment.base_offset


def _segment(partition: PartitionLog, base: int) -> Segment:
    size, _ = partition.files.stat(segment_path(partition.directory, base, ".log"))
    return Segment(partition.files, partition.directory, base, partition.residents, size=size)


def _open_segments(
    partition: PartitionLog, stop: CleanStop | None, recovery_point: int, replayed: Replayed
) -> Iterator[None]:
    active = partition.active
    if stop is not None and (stop.active_base, stop.active_size) == (
        active.base_offset,
        active.size,
    ):
        active.next_offset = stop.end_offset
        active.timestamp_max = stop.timestamp_max
        active.timestamp_max_offset = stop.timestamp_max_offset
        active.note_first_timestamp()
        return
    known_end = max(recovery_point if stop is None else stop.end_offset, replayed.end_offset)
    for segment in list(partition.segments):
        # Includes a segment that ends at the recovery point: its index files may not be synced.
        if segment.active or segment.next_offset >= recovery_point:
            yield
            boundaries = replayed.boundaries.get(segment.base_offset, [])
            at_rest = stop is not None
            whole = _recover(partition, segment, recovery_point, boundaries, at_rest=at_rest)
            # What ends at the recovery point was on the disk: it was damaged, and what follows it
            # may have been written since then.
            torn = not whole and segment.next_offset > recovery_point
            if torn and not partition.flusher.syncs and not at_rest:
                _end_with(partition, segment)
                break
    _close_end(partition, known_end)


def _recover(
    partition: PartitionLog,
    segment: Segment,
    recovery_point: int,
    boundaries: Sequence[int],
    *,
    at_rest: bool,
) -> bool:
    """Check a segment from the recovery point on; False if it lacks something at its end."""
    position, next_offset, indexed = _resume_point(segment, recovery_point)
    unsynced_from = position
    before = segment.index_headers(0, position) if position else None
    if before is None:
        position, next_offset = 0, segment.base_offset
    found = segment.inspect_from(
        position,
        next_offset,
        before=before,
        offset_max=OFFSET_MAX if segment.active else segment.next_offset - 1,
        care=Care(
            sorted({*indexed, *boundaries}),
            at_rest,
            # Where the page cache is good enough nothing says what was written before what: as
            # Kafka does, only that is kept before which nothing is missing.
            ends_at_damage=not (at_rest or partition.flusher.syncs),
        ),
    )
    sealed_end = segment.next_offset
    segment.adopt(before, found, from_position=position)
    segment.note_first_timestamp()
    whole = found.end == segment.size
    if not segment.active:
        segment.next_offset = sealed_end
        # A compacted segment may end before the next one begins; any other has lost its tail.
        whole = whole and (found.next_offset == sealed_end or segment.gaps)
    if not whole:
        lost = Damage(found.end, segment.size, found.next_offset, segment.next_offset)
        segment.damages.append(lost)
    if not at_rest:
        _write_again(segment, unsynced_from, found.end)
    return whole


def _write_again(segment: Segment, position: int, end: int) -> None:
    """Write a range of bytes over themselves, so that the next sync brings them to the disk.

    If a sync has failed, the system may hold pages in memory that it never wrote and does not mean
    to write: they can be read, and the next sync succeeds without them.
    """
    files, file = segment.files, segment.file
    while position < end:
        data = files.read(file, min(_REWRITE_BYTES, end - position), position)
        if not data:
            break
        files.write(file, data, position)
        position += len(data)


def _end_with(partition: PartitionLog, last: Segment) -> None:
    """Drop the segments behind one that lost its tail."""
    for segment in partition.segments[partition.segments.index(last) + 1 :]:
        log.warning(
            "%s: dropped the segment at offset %d: what comes before it is lost",
            partition.name,
            segment.base_offset,
        )
        segment.close()
        segment.remove_files()
    del partition.segments[partition.segments.index(last) + 1 :]
    partition.bases = [segment.base_offset for segment in partition.segments]
    last.active = True
    last.next_offset = last.damages[-1].offset


def _close_end(partition: PartitionLog, known_end: int) -> None:
    """Cut the log behind its last whole batch; what is known to have been there is not given
    again.
    """
    segment = partition.active
    damages = segment.damages
    tail = damages[-1] if damages and damages[-1].end == segment.size else None
    if segment.next_offset < known_end:
        # What is missing had been on the disk: it was damaged, not torn.  Its offsets stay taken.
        if tail is not None:
            damages.pop()
        start = segment.size if tail is None else tail.start
        lost = Damage(start, segment.size, segment.next_offset, known_end)
        damages.append(lost)
        segment.next_offset = known_end
        if not segment.size:
            partition.report(lost)  # the segment itself goes
        partition.skip_to(known_end)
    elif tail is not None:
        log.warning(
            "%s: cut %d bytes behind offset %d that were not a whole batch",
            partition.name,
            segment.size - tail.start,
            tail.offset,
        )
        damages.pop()
        segment.cut(tail.start)


def _resume_point(segment: Segment, recovery_point: int) -> tuple[int, int, list[int]]:
    """Return the boundary from which everything must be read: its position and its offset.

    The third value is all positions in the index file, including those after that boundary.
    """
    index, _ = segment.read_index_files()
    if index is None:
        return 0, segment.base_offset, []
    positions = list(index.positions)
    entry = bisect_left(index.offsets, max(0, recovery_point - segment.base_offset)) - 1
    while entry >= 0:
        header = segment.entry_header(index, entry)
        if header is not None:
            return index.positions[entry], header.base_offset, positions
        entry -= 1
    return 0, segment.base_offset, positions


def _point_at_most(partition: PartitionLog, recovery_point: int) -> Point:
    """A boundary up to which the files are known to be on the disk."""
    segment = partition.segment_of(recovery_point)
    return Point(segment.base_offset, segment.base_offset, 0)


def _open_aborted(partition: PartitionLog) -> None:
    for segment in partition.segments:
        path = segment.path(".txnindex")
        if not partition.files.exists(path):
            continue
        file = partition.files.open(path)
        size = partition.files.size(file)
        # At most one entry per batch: a file that is larger is not read whole.
        size_max = (segment.size // HEADER_BYTES + 1) * transactions.ENTRY_BYTES
        data = partition.files.read(file, min(size, size_max), 0)
        entries = transactions.unpack(data, segment.base_offset, segment.next_offset)
        for entry in entries:
            partition.aborted.add(entry)
        sound = transactions.pack(entries)
        if sound != data or len(sound) != size:
            # Left there, these would be taken for transactions of records yet to come.
            partition.files.write(file, sound, 0)
            partition.files.truncate(file, len(sound))
        file.close()


def open_producers(partition: PartitionLog) -> None:
    """Load the newest snapshot that fits, then walk what was written after it."""
    _open_aborted(partition)
    files, end = partition.files, partition.end_offset
    names = files.list(partition.directory)
    offsets = [int(match[1]) for name in names if (match := _SNAPSHOT_NAME.fullmatch(name))]
    # Not from its start: what was deleted in this segment may be sent again.
    offset = partition.segments[0].base_offset
    for candidate in sorted(offsets, reverse=True):
        path = segment_path(partition.directory, candidate, ".producers")
        file = files.open(path, writable=False)
        data = files.read(file, files.size(file), 0)
        file.close()
        newest = candidate <= end and partition.snapshots.offset < 0
        states = Producers.unpack(data, partition.room) if newest else None
        if states is not None:
            partition.producers = states
            partition.snapshots.offset = offset = candidate
        else:
            files.remove(path)
    for segment in partition.segments:
        if segment.next_offset > offset:
            _walk_producers(partition, segment, offset)
    # Segments below the start are dropped last: they may hold the newest batch of a producer.
    partition.advance_start(partition.start_offset)


def _walk_producers(partition: PartitionLog, segment: Segment, offset: int) -> None:
    found = segment.find(offset, patient=True)
    if found is None:
        return
    position = found.position
    data = partition.files.map(segment.file, position)
    try:
        while position < segment.size:
            following = damage_from(segment.damages, position)
            end = segment.size if following is None else following.start
            scan = kernels.scan_batches(
                data,
                position,
                end,
                file_position=position,
                segment_base=segment.base_offset,
                next_offset=0,
                index_interval=1 << 30,
                bytes_since_entry=0,
                timestamp_max=-1,
                timestamp_max_offset=-1,
                verify=False,
                producers=True,
            )
            for (
                producer_id,
                epoch,
                first,
                last,
                base,
                last_offset,
                attributes,
                at,
            ) in scan.producers:
                written = Written(first, last, base, last_offset)
                partition.note_producer(producer_id, epoch, written, attributes, data, at)
            damage = damage_at(segment.damages, scan.position)
            if scan.position >= segment.size or damage is None:
                break
            position = damage.end
    finally:
        if not isinstance(data, bytes):
            data.close()

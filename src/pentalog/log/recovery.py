"""Open a partition's directory: quickly after a clean stop, carefully after anything else.

After a crash only what was not known to be on the disk is read: from the recovery point on every
checksum is verified, the log is cut behind its last whole batch, and damage in its middle is
reported and stepped over.  Offsets that were ever known to be taken are never given again.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from pentalog import kernels
from pentalog.log import swap, transactions
from pentalog.log.index import OffsetIndex, TimeIndex
from pentalog.log.inspection import OFFSET_MAX, Damage
from pentalog.log.partition import PartitionLog
from pentalog.log.producers import Producers, Written
from pentalog.log.segment import Point, Segment, segment_path

log = logging.getLogger("pentalog.log")

_SEGMENT_NAME: Final = re.compile(r"(\d{20})\.log")
_SNAPSHOT_NAME: Final = re.compile(r"(\d{20})\.producers")
_HEADER_BYTES: Final = 61


class CleanStop(NamedTuple):
    """What a clean stop said of a partition; all of it must still be so to be believed."""

    active_base: int
    active_size: int
    end_offset: int
    timestamp_max: int
    timestamp_max_offset: int


def open_partition(
    partition: PartitionLog, stop: CleanStop | None, *, recovery_point: int, start_offset: int
) -> Iterator[None]:
    """Attach what lies in the partition's directory; `open_producers` is the second half.

    Yields after every segment that had to be read.
    """
    names = swap.tidy(partition.files, partition.directory)
    bases = [int(match[1]) for name in names if (match := _SEGMENT_NAME.fullmatch(name))]
    segments = [_segment(partition, base) for base in bases]
    if len(segments) > 1 and not segments[-1].size and not _was_active(segments[-1], stop):
        # Begun, but nothing was written to it: the roll may have been given up again.
        segments.pop().remove_files()
    for segment, following in pairwise(segments):
        segment.next_offset = following.base_offset
    if segments:
        segments[-1].active = True
    partition.start_offset = max(start_offset, bases[0] if bases else 0)
    partition.attach(segments)
    if segments:
        yield from _open_active(partition, stop, recovery_point)
    end = partition.end
    partition.durable = end
    if stop is not None or not segments:
        partition.synced = end
    else:
        partition.synced = _point_at_most(partition, recovery_point)


def _was_active(segment: Segment, stop: CleanStop | None) -> bool:
    return stop is not None and stop.active_base == segment.base_offset


def _segment(partition: PartitionLog, base: int) -> Segment:
    size, _ = partition.files.stat(segment_path(partition.directory, base, ".log"))
    return Segment(partition.files, partition.directory, base, partition.residents, size=size)


def _open_active(
    partition: PartitionLog, stop: CleanStop | None, recovery_point: int
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
    known_end = recovery_point if stop is None else stop.end_offset
    for segment in partition.segments:
        if segment.active or segment.next_offset > recovery_point:
            _recover(partition, segment, recovery_point, known_end)
            yield


def _recover(
    partition: PartitionLog, segment: Segment, recovery_point: int, known_end: int
) -> None:
    index, time_index, position, next_offset = _resume_point(segment, recovery_point)
    found = segment.inspect_from(
        position,
        next_offset,
        offset_max=OFFSET_MAX if segment.active else segment.next_offset - 1,
        timestamp_max=time_index.newest,
        timestamp_max_offset=time_index.newest_offset(segment.base_offset),
        bytes_since_entry=segment.index_interval + 1 if position else 0,
    )
    sealed_end = segment.next_offset
    segment.adopt(index, time_index, found, from_position=position)
    segment.note_first_timestamp()
    if not segment.active:
        segment.next_offset = sealed_end
        if found.end < segment.size:
            segment.damages.append(Damage(found.end, segment.size, found.next_offset, sealed_end))
    elif found.next_offset < known_end:
        # What is missing had been on the disk: it was damaged, not torn.  Its offsets stay taken.
        segment.damages.append(Damage(found.end, segment.size, found.next_offset, known_end))
        segment.next_offset = known_end
    elif found.end < segment.size:
        log.warning(
            "%s: cut %d bytes behind offset %d that were not a whole batch",
            partition.name,
            segment.size - found.end,
            found.next_offset,
        )
        segment.cut(found.end)


def _resume_point(segment: Segment, recovery_point: int) -> tuple[OffsetIndex, TimeIndex, int, int]:
    """Indexes that can be believed, and the boundary from which everything must be read."""
    index, time_index = segment.read_index_files()
    if index is None or time_index is None:
        return OffsetIndex(), TimeIndex(), 0, segment.base_offset
    entry = bisect_left(index.offsets, max(0, recovery_point - segment.base_offset)) - 1
    while entry >= 0:
        position = index.positions[entry]
        if position + _HEADER_BYTES <= segment.size:
            header = segment.header_at(position)
            last = header.base_offset + header.last_offset_delta - segment.base_offset
            if header.magic == 2 and last == index.offsets[entry] and header.last_offset_delta >= 0:
                index.truncate(position)
                time_index.truncate(last + 1)
                return index, time_index, position, header.base_offset
        entry -= 1
    return OffsetIndex(), TimeIndex(), 0, segment.base_offset


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
        data = partition.files.read(file, partition.files.size(file), 0)
        entries = transactions.unpack(data, segment.base_offset, segment.next_offset)
        for entry in entries:
            partition.aborted.add(entry)
        sound = transactions.pack(entries)
        if sound != data:
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
    offset = partition.start_offset
    for candidate in sorted(offsets, reverse=True):
        path = segment_path(partition.directory, candidate, ".producers")
        file = files.open(path, writable=False)
        data = files.read(file, files.size(file), 0)
        file.close()
        states = Producers.unpack(data) if candidate <= end else None
        if states is not None and partition.snapshot_offset < 0:
            partition.producers = states
            partition.snapshot_offset = offset = candidate
        else:
            files.remove(path)
    for segment in partition.segments:
        if segment.next_offset > offset:
            _walk_producers(partition, segment, offset)


def _walk_producers(partition: PartitionLog, segment: Segment, offset: int) -> None:
    found = segment.find(offset, patient=True)
    if found is None:
        return
    position = found.position
    data = partition.files.map(segment.file, position)
    try:
        while position < segment.size:
            end = min([d.start for d in segment.damages if d.start >= position] + [segment.size])
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
            behind = [d.end for d in segment.damages if d.start <= scan.position < d.end]
            if scan.position >= segment.size or not behind:
                break
            position = behind[0]
    finally:
        if not isinstance(data, bytes):
            data.close()

"""Drop what a topic no longer keeps: by age, by size, and what was trimmed away."""

from __future__ import annotations

from typing import NamedTuple

from pentalog.log.partition import PartitionLog
from pentalog.log.segment import Segment
from pentalog.log.times import confirm_newest
from pentalog.model.types import Offset


class Lease(NamedTuple):
    """Somebody has not read everything yet, and asked for it to be kept."""

    offset: Offset
    """The next one to be read."""
    bytes_max: int
    """What may be kept for this beyond what the topic keeps anyway."""


def apply_retention(partition: PartitionLog, now_ms: int, lease: Lease | None = None) -> int:
    """Remove expired segments from the front; returns how many.

    Nothing goes that is not durable yet, or belongs to a transaction that is still open.
    """
    doomed: list[Segment] = []
    held: list[Segment] = []
    remaining_bytes = partition.size_bytes
    for segment in list(partition.segments):
        if segment.active and not segment.size:
            break
        if not _has_expired(segment, partition, remaining_bytes, now_ms):
            break
        remaining_bytes -= segment.size
        if lease is not None and segment.next_offset > max(lease.offset, partition.start_offset):
            held.append(segment)
        else:
            doomed.append(segment)
    held_bytes = sum(segment.size for segment in held)
    while lease is not None and held_bytes > lease.bytes_max:
        overrun = held.pop(0)
        held_bytes -= overrun.size
        partition.metrics.segments_deleted_unread += 1
        doomed.append(overrun)
    partition.metrics.retention_held_bytes += held_bytes - partition.leased_bytes
    partition.leased_bytes = held_bytes
    if doomed and doomed[-1].active:
        partition.roll()
    return partition.drop_segments(doomed)


def _has_expired(
    segment: Segment, partition: PartitionLog, remaining_bytes: int, now_ms: int
) -> bool:
    if segment.next_offset <= partition.start_offset:
        return True
    settings = partition.settings
    if not settings.cleanup_delete or segment.next_offset > partition.stable_offset:
        return False
    if 0 <= settings.retention_bytes <= remaining_bytes - segment.size:
        return True
    if settings.retention_ms < 0 or newest_ms(segment) + settings.retention_ms >= now_ms:
        return False
    confirm_newest(segment)
    return newest_ms(segment) + settings.retention_ms < now_ms


def newest_ms(segment: Segment) -> int:
    """The time of a segment's newest record, or of its last change if none has a time."""
    newest = segment.newest_timestamp
    if newest >= 0:
        return newest
    return int(segment.files.stat(segment.path(".log"))[1] * 1000)

"""Lookup of records by time, and the newest time of a segment.

The time index is a hint: an entry is used only if the batch that it names has that time.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from pentalog import kernels
from pentalog.log.inspection import damage_at
from pentalog.log.segment import HEADER_BYTES, WALK_BYTES, Found, Segment

_WRONG_ENTRIES_MAX: Final = 16
"""Time index entries that are tried before the segment is searched from its beginning."""


def find_time(segment: Segment, timestamp: int) -> Found | None:
    """Return the first batch whose largest timestamp is at or after `timestamp`.

    It may wait for the disk.
    """
    position = 0
    newest = bisect_left(segment.time_index.timestamps, timestamp) - 1
    for number in range(newest, max(newest - _WRONG_ENTRIES_MAX, -1), -1):
        found = _find_entry(segment, number)
        if found is not None:
            position = found.position
            break
    return find_time_after(segment, position, timestamp)


def find_time_after(segment: Segment, position: int, timestamp: int) -> Found | None:
    """The same, from a batch boundary on."""
    while position < segment.size:
        segment.trust(position, min(segment.size, position + WALK_BYTES), patient=True)
        damage = damage_at(segment.damages, position)
        if damage is not None:
            position = damage.end
            continue
        end = min(position + WALK_BYTES, segment.sound_until(position))
        data = segment.read(position, max(HEADER_BYTES, end - position), patient=True)
        at, stopped = kernels.locate_time(data, 0, len(data), timestamp)
        if at >= 0:
            header = kernels.batch_header(data, at)
            return Found(position + at, header.base_offset)
        if stopped <= 0:
            raise AssertionError(f"{segment.path('.log')} has no batch at {position}")
        position += stopped
    return None


def confirm_newest(segment: Segment) -> None:
    """Check the newest time of a sealed segment against its batches, before it is deleted by age.

    The index may lack its last entries after a power cut, or be damaged.  If its last entry names
    a batch with that time, it is right up to that batch; the batches after it are scanned.
    """
    if segment.newest_confirmed or not segment.size:
        return
    indexed = segment.checked_position(len(segment.index) - 1)
    tail = segment.index_headers(indexed, segment.size)
    named = _find_entry(segment, len(segment.time_index) - 1) is not None
    if not named or tail is None or tail.timestamp_max > segment.time_index.newest:
        segment.rebuild()
    segment.timestamp_max = segment.time_index.newest
    segment.newest_confirmed = True


def _find_entry(segment: Segment, number: int) -> Found | None:
    """Return the batch that a time index entry names; None if it has another time."""
    times = segment.time_index
    if number < 0:
        return None
    found = segment.find(segment.base_offset + times.offsets[number], patient=True)
    if found is None or segment.header_at(found.position).max_timestamp != times.timestamps[number]:
        return None
    return found

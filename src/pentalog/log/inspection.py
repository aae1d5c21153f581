"""Tell the sound batches of a segment from damaged ones.

A checksum covers a batch from its attributes on; base offset, length and magic lie before it.
So a batch counts as sound only if its checksum holds *and* its offsets fit between those of its
neighbours.  Damage costs the batch it hit: behind it the next sound batch is searched for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pentalog import kernels
from pentalog.kernels import Scan

OFFSET_MAX: Final = (1 << 63) - 2
"""No end is known."""
_HEADER_BYTES: Final = 61


class Damage(NamedTuple):
    """A range of a segment that holds no sound batch."""

    start: int
    end: int
    offset: int
    """First offset that may be missing."""
    next_offset: int
    """First offset that is there again; that of the log's end if nothing follows."""


class Inspection(NamedTuple):
    """What a piece of a segment holds.  Positions inside `scans` count from the piece's start."""

    end: int
    """File position behind the last sound batch."""
    next_offset: int
    scans: Sequence[Scan]
    """One per undisturbed stretch, in order."""
    damages: Sequence[Damage]
    """Between the sound batches; what lies behind the last sound batch is not counted here."""


def inspect(
    data: bytes | memoryview,
    *,
    file_position: int,
    segment_base: int,
    next_offset: int,
    offset_max: int = OFFSET_MAX,
    index_interval: int = 4096,
    timestamp_max: int = -1,
    timestamp_max_offset: int = -1,
    bytes_since_entry: int = 0,
    timestamp_entered: int = -1,
    producers: bool = False,
    gaps: bool = False,
) -> Inspection:
    """Walk `data`, which lies at `file_position` and starts with a batch.

    Offsets must stay in `next_offset..offset_max`.  `gaps` says that offsets may be missing
    between neighbours, as they are after compaction.
    """
    scans: list[Scan] = []
    damages: list[Damage] = []
    size = len(data)
    start = 0
    resumed_at = -1
    while start < size:
        scan = kernels.scan_batches(
            data,
            start,
            size,
            file_position=file_position + start,
            segment_base=segment_base,
            next_offset=next_offset,
            index_interval=index_interval,
            bytes_since_entry=bytes_since_entry,
            timestamp_max=timestamp_max,
            timestamp_max_offset=timestamp_max_offset,
            timestamp_entered=timestamp_entered,
            verify=True,
            producers=producers,
            gaps=gaps,
            offset_max=offset_max,
        )
        if scan.batches:
            scans.append(scan)
            next_offset = scan.next_offset
            timestamp_max = scan.timestamp_max
            timestamp_max_offset = scan.timestamp_max_offset
            timestamp_entered = scan.timestamp_entered
            bytes_since_entry = scan.bytes_since_entry
        start = scan.position
        if start >= size:
            break
        # A checksum may hold where the rest does not: never go on twice from the same place.
        search_from = start + 1 if start == resumed_at else start
        resumed = _resume(data, start, search_from, next_offset, offset_max)
        if resumed is None:
            break
        position, offset = resumed
        resumed_at = position
        if position > start:
            damage = Damage(file_position + start, file_position + position, next_offset, offset)
            damages.append(damage)
        next_offset = offset
        start = position
    end = file_position + start
    return Inspection(end, next_offset, scans, damages)


def _resume(
    data: bytes | memoryview, start: int, search_from: int, next_offset: int, offset_max: int
) -> tuple[int, int] | None:
    """Where sound batches go on after the one at `start` did not fit, and with which offset."""
    position = search_from
    while True:
        position = kernels.find_batch(
            data, position, len(data), offset_min=next_offset, offset_max=offset_max
        )
        if position < 0:
            return None
        header = kernels.batch_header(data, position)
        following = header.base_offset + header.last_offset_delta + 1
        if following - 1 <= offset_max:
            witness = _base_offset_behind(data, position + header.size, offset_max)
            if witness is not None:
                believed = witness >= following
            else:
                missing = header.base_offset - next_offset
                believed = offset_max != OFFSET_MAX or missing <= _lost(data, start, position)
            if believed:
                return position, header.base_offset
        position += 1


def _base_offset_behind(data: bytes | memoryview, position: int, offset_max: int) -> int | None:
    """Base offset of the next sound batch: the witness for the one before it.

    No checksum covers a base offset.  If a damaged one were believed, every batch behind it
    would seem to go back.
    """
    found = kernels.find_batch(data, position, len(data), offset_min=0, offset_max=offset_max)
    return None if found < 0 else kernels.batch_header(data, found).base_offset


def _lost(data: bytes | memoryview, start: int, position: int) -> int:
    """How many offsets the damaged bytes may have held."""
    if position - start < _HEADER_BYTES:
        return 0
    header = kernels.batch_header(data, start)
    # A record takes at least seven bytes, but a compressed one may take none to speak of; then
    # only the damaged header itself can tell.
    claimed = header.last_offset_delta + 1 if start + header.size == position else 0
    return max(position - start, claimed)

"""Tell the sound batches of a segment from damaged ones.

A checksum covers a batch from its attributes on; base offset, length and magic lie before it.
So a batch counts as sound only if its checksum holds *and* its offsets fit between those of its
neighbours.  Damage costs the batch it hit: the next sound batch behind it is served again.

Values come from clients and may hold whole batches with right checksums.  So the next batch is
never searched for byte by byte: only positions where a batch is known to begin are considered.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from pentalog import kernels
from pentalog.kernels import Scan

OFFSET_MAX: Final = (1 << 63) - 2
"""No end is known."""
_HEADER_BYTES: Final = 61
_CHECKSUMMED_FROM: Final = 21
_MAGIC: Final = 2
_MAGIC_AT: Final = 16
_PIECE_BYTES: Final = 64 << 10
_REPAIRS_MAX: Final = 64
"""Lengths that are tried for a batch whose own length is damaged."""
_HEADS_MAX: Final = 1 << 20
"""Bytes that are taken for the format of a batch in search of them: a second or so."""


class Damage(NamedTuple):
    """A range of a segment that holds no sound batch."""

    start: int
    end: int
    offset: int
    """First offset that may be missing."""
    next_offset: int
    """First offset that is there again; that of the log's end if nothing follows."""


def damage_at(damages: Sequence[Damage], position: int) -> Damage | None:
    """The damage that covers a position, of damages in ascending order."""
    number = bisect_right(damages, position, key=_start) - 1
    return damages[number] if number >= 0 and position < damages[number].end else None


def damage_from(damages: Sequence[Damage], position: int) -> Damage | None:
    """The first damage that begins at a position or after it, of damages in ascending order."""
    number = bisect_left(damages, position, key=_start)
    return damages[number] if number < len(damages) else None


def _start(damage: Damage) -> int:
    return damage.start


class Care(NamedTuple):
    """What is known of a piece of a segment before it is inspected."""

    boundaries: Sequence[int] = ()
    """File positions, ascending, where batches are known to begin."""
    at_rest: bool = True
    """It was written whole; otherwise its last batch may be torn."""
    ends_at_damage: bool = False
    """Nothing behind the first damage counts."""


AT_REST: Final = Care()


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
    gaps: bool = False,
    care: Care = AT_REST,
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
    known = [position - file_position for position in care.boundaries]
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
            producers=False,
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
        if start >= size or care.ends_at_damage:
            break
        following = _positions_behind(data, start, next_offset, offset_max, known, care.at_rest)
        if start != resumed_at:
            # A checksum may hold where the rest does not: not twice from the same place.
            following = chain((start,), following)
        resumed = _resume(data, start, next_offset, offset_max, following)
        if resumed is None:
            break
        position, offset = resumed
        resumed_at = position
        if position > start:
            damage = Damage(file_position + start, file_position + position, next_offset, offset)
            damages.append(damage)
            bytes_since_entry = index_interval + 1  # the index must know where this goes on
        next_offset = offset
        start = position
    return Inspection(file_position + start, next_offset, scans, damages)


def walk(
    data: kernels.Buffer,
    segment_base: int,
    next_offset: int,
    *,
    file_position: int = 0,
    offset_max: int = OFFSET_MAX,
    gaps: bool = False,
) -> Scan:
    """Walk whole batches up to the first flaw; nothing is noted for an index."""
    return kernels.scan_batches(
        data,
        0,
        len(data),
        file_position=file_position,
        segment_base=segment_base,
        next_offset=next_offset,
        index_interval=1 << 30,
        bytes_since_entry=0,
        timestamp_max=-1,
        timestamp_max_offset=-1,
        verify=True,
        producers=False,
        gaps=gaps,
        offset_max=offset_max,
    )


def _resume(
    data: bytes | memoryview,
    start: int,
    next_offset: int,
    offset_max: int,
    positions: Iterator[int],
) -> tuple[int, int] | None:
    """Where sound batches go on after the one at `start` did not fit, and with which offset."""
    for position in positions:
        if not is_sound(data, position, next_offset, offset_max):
            continue
        header = kernels.batch_header(data, position)
        following = header.base_offset + header.last_offset_delta + 1
        if following - 1 > offset_max:
            continue
        # No checksum covers a base offset.  If a damaged one were believed, the batch behind it
        # would seem to go back.
        behind = position + header.size
        if is_sound(data, behind, 0, offset_max):
            believed = kernels.batch_header(data, behind).base_offset >= following
        else:
            missing = header.base_offset - next_offset
            believed = offset_max != OFFSET_MAX or missing <= _lost(data, start, position)
        if believed:
            return position, header.base_offset
    return None


def is_sound(data: kernels.Buffer, position: int, offset_min: int, offset_max: int) -> bool:
    """Does a whole, right-summed batch with such a base offset begin exactly there?"""
    if len(data) - position < _HEADER_BYTES:
        return False
    end = position + kernels.batch_header(data, position).size
    if not position + _HEADER_BYTES <= end <= len(data):
        return False
    found = kernels.find_batch(data, position, end, offset_min=offset_min, offset_max=offset_max)
    return found == position


def _positions_behind(
    data: bytes | memoryview,
    start: int,
    next_offset: int,
    offset_max: int,
    known: Sequence[int],
    at_rest: bool,
) -> Iterator[int]:
    """Where a batch may begin behind the damaged one at `start`, the likeliest first."""
    yield from _by_lengths(data, start, next_offset, offset_max)
    if at_rest:
        yield from _by_repair(data, start, next_offset, offset_max)
    for number in range(bisect_right(known, start), len(known)):
        if known[number] < len(data):
            yield known[number]


def _by_lengths(
    data: bytes | memoryview, start: int, next_offset: int, offset_max: int
) -> Iterator[int]:
    """Behind the damaged batch by its own length; if what is there is damaged too, behind that."""
    position = start
    while len(data) - position >= _HEADER_BYTES:
        header = kernels.batch_header(data, position)
        plausible = header.magic == 2 and next_offset <= header.base_offset <= offset_max
        if header.size < _HEADER_BYTES or (position > start and not plausible):
            return
        position += header.size
        if position < len(data):
            yield position


def _by_repair(
    data: bytes | memoryview, start: int, next_offset: int, offset_max: int
) -> Iterator[int]:
    """Behind the damaged batch if only its length is wrong: with the right one its checksum holds.

    Not where a batch may be torn: a value can be made so that a part of its batch has the
    checksum of the whole.
    """
    view = memoryview(data)
    if len(view) - start < _HEADER_BYTES:
        return
    wanted = kernels.batch_header(view, start).crc
    crc, summed, found = 0, start + _CHECKSUMMED_FROM, 0
    for position in _heads(view, start + _HEADER_BYTES, next_offset, offset_max):
        # Not the sum of each batch that a head announces: a value full of heads would take hours.
        crc, summed = kernels.crc32c(view[summed:position], crc), position
        if crc == wanted:
            yield position
            found += 1
            if found == _REPAIRS_MAX:
                return


def _heads(view: memoryview, start: int, next_offset: int, offset_max: int) -> Iterator[int]:
    """Positions where something like the head of a batch begins."""
    tried = 0
    for piece in range(start + _MAGIC_AT, len(view), _PIECE_BYTES):
        data = bytes(view[piece : piece + _PIECE_BYTES])
        at = data.find(_MAGIC)
        while at >= 0 and tried < _HEADS_MAX:
            tried += 1
            position = piece + at - _MAGIC_AT
            if len(view) - position >= _HEADER_BYTES:
                header = kernels.batch_header(view, position)
                whole = _HEADER_BYTES <= header.size <= len(view) - position
                if whole and next_offset <= header.base_offset <= offset_max:
                    yield position
            at = data.find(_MAGIC, at + 1)


def _lost(data: bytes | memoryview, start: int, position: int) -> int:
    """How many offsets the damaged bytes may have held."""
    if position - start < _HEADER_BYTES:
        return 0
    header = kernels.batch_header(data, start)
    # A record takes at least seven bytes, but a compressed one may take none to speak of; then
    # only the damaged header itself can tell.
    claimed = header.last_offset_delta + 1 if start + header.size == position else 0
    return max(position - start, claimed)

"""Walks over the records of batches that stop at the first record that cannot be read.

The layout of a record is in `pure/records.py`, that of a batch in `pure/batch.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from pentalog.kernels.facts import FLAW_COUNT, FLAW_NONE, FLAW_RECORD, Buffer, Malformed
from pentalog.kernels.pure.crc32c import crc32c
from pentalog.kernels.pure.varints import i64, read_i32, read_varint

PRODUCED: Final = -1
"""In place of the last offset delta: deltas must count from 0, as a producer sends them."""

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_HEADER_BYTES: Final = _HEADER.size
_FRAMING_BYTES: Final = 12
_CODEC_MASK: Final = 7
_APPEND_TIME: Final = 0x08
_I32_MAX: Final = (1 << 31) - 1
_I64_MAX: Final = (1 << 63) - 1
_I64: Final = struct.Struct(">q")
_U32: Final = struct.Struct(">I")


class Walked(NamedTuple):
    """One record that a walk has met."""

    start: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key_null: bool


def _view(data: Buffer, start: int, end: int) -> memoryview:
    view = memoryview(data).cast("B")
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"range {start}..{end} is not inside a buffer of {len(view)} bytes")
    return view


def _malformed(position: int) -> Malformed:
    return Malformed(f"the records of the batch are malformed at byte {position}")


def _skip(view: memoryview, position: int, end: int) -> tuple[int, bool]:
    """(position behind a field with a length, is it null)."""
    size, position = read_i32(view, position, end)
    if size > end - position:
        raise _malformed(position)
    return position + max(size, 0), size < 0


def _record(view: memoryview, start: int, end: int) -> Walked:
    length, position = read_i32(view, start, end)
    if not 1 <= length <= end - position:
        raise _malformed(start)
    end = position + length
    timestamp_delta, position = read_varint(view, position + 1, end)
    offset_delta, position = read_i32(view, position, end)
    position, key_null = _skip(view, position, end)
    position, _ = _skip(view, position, end)
    headers, position = read_i32(view, position, end)
    if not 0 <= headers <= end - position:
        raise _malformed(start)
    for _ in range(headers):
        position, name_null = _skip(view, position, end)
        if name_null:
            raise _malformed(start)
        position, _ = _skip(view, position, end)
    if position != end:
        raise _malformed(start)
    return Walked(start, end, timestamp_delta, offset_delta, key_null)


def walk(
    view: memoryview, position: int, end: int, count: int, offset_last: int
) -> Iterator[Walked]:
    """The records one by one; raises `Malformed` at the first that cannot be read.

    Offset deltas grow and stay up to `offset_last`, or count from 0 if that is `PRODUCED`.
    """
    before = -1
    for index in range(count):
        record = _record(view, position, end)
        delta = record.offset_delta
        if delta != index if offset_last < 0 else not before < delta <= offset_last:
            raise _malformed(position)
        before = delta
        position = record.end
        yield record


def check_walk(
    view: memoryview, start: int, end: int, count: int, offset_last: int
) -> tuple[int, int, int, int]:
    """(flaw, null keys, smallest timestamp delta, largest); zeros with a flaw."""
    null_keys, deltas, position = 0, [], start
    try:
        for record in walk(view, start, end, count, offset_last):
            null_keys += record.key_null
            deltas.append(record.timestamp_delta)
            position = record.end
    except Malformed:
        return FLAW_RECORD, 0, 0, 0
    if position != end:
        return FLAW_COUNT, 0, 0, 0
    return FLAW_NONE, null_keys, min(deltas, default=0), max(deltas, default=0)


def check_records(
    payload: Buffer, start: int, end: int, count: int, offset_last: int = PRODUCED
) -> tuple[int, int, int, int]:
    """(flaw, null keys, smallest timestamp delta, largest) of an uncompressed payload.

    Offset deltas must count from 0, as a producer sends them, or grow up to `offset_last`.
    """
    view = _view(payload, start, end)
    if count < 0:
        return FLAW_COUNT, 0, 0, 0
    return check_walk(view, start, end, count, offset_last)


def readable_batches(data: Buffer, start: int, end: int) -> tuple[int, int]:
    """(attribute words of the batches that can be read, or-ed; where the first other starts).

    Compressed batches are not opened.
    """
    view = _view(data, start, end)
    position, attributes = start, 0
    while end - position >= _HEADER_BYTES and view[position + 16] == 2:
        fields = _HEADER.unpack_from(view, position)
        size, delta, count = fields[1] + _FRAMING_BYTES, fields[6], fields[12]
        if not _HEADER_BYTES <= size <= min(_I32_MAX, end - position):
            break
        if delta < 0 or not 0 <= fields[0] < _I64_MAX - delta or count < 0:
            break
        if not fields[5] & _CODEC_MASK:
            body = position + _HEADER_BYTES
            if check_walk(view, body, position + size, count, delta)[0]:
                break
        attributes |= fields[5] & 0xFFFF
        position += size
    return attributes, position


def stamp_newest_time(data: Buffer, start: int, end: int) -> None:
    """Have the headers of checked, uncompressed batches name their newest record, in place."""
    view = _view(data, start, end)
    position = start
    while position < end:
        size = 0
        if end - position >= _HEADER_BYTES:
            fields = _HEADER.unpack_from(view, position)
            size = fields[1] + _FRAMING_BYTES
        if not _HEADER_BYTES <= size <= end - position:
            raise ValueError(f"no whole batch at {position}: check the batches before")
        if not fields[5] & (_CODEC_MASK | _APPEND_TIME):
            body = position + _HEADER_BYTES
            flaw, _, _, newest = check_walk(view, body, position + size, fields[12], PRODUCED)
            timestamp = max(-1, i64(fields[7] + newest))
            if not flaw and timestamp != fields[8]:
                _I64.pack_into(view, position + 35, timestamp)
                _U32.pack_into(view, position + 17, crc32c(view[position + 21 : position + size]))
        position += size


def find_time(
    payload: Buffer,
    start: int,
    end: int,
    count: int,
    *,
    base_offset: int,
    base_timestamp: int,
    offset_min: int,
    timestamp_min: int,
) -> tuple[int, int]:
    """(offset, timestamp) of the first record from an offset and a time on; (-1, -1) without.

    The walk stops there: what follows is not looked at.
    """
    view = _view(payload, start, end)
    for record in walk(view, start, end, count, _I32_MAX):
        offset = i64(base_offset + record.offset_delta)
        timestamp = i64(base_timestamp + record.timestamp_delta)
        if offset >= offset_min and timestamp >= timestamp_min:
            return offset, timestamp
    return -1, -1


def cut_records(
    payload: Buffer, start: int, end: int, count: int, *, delta_min: int, bytes_max: int
) -> tuple[int, int, int, int]:
    """(start, end, count, last offset delta) of the records from an offset delta on.

    At least one, and then as many as are within `bytes_max`; (end, end, 0, -1) without any.
    """
    view = _view(payload, start, end)
    first, stop, kept, last = -1, end, 0, -1
    for record in walk(view, start, end, count, _I32_MAX):
        if first < 0:
            if record.offset_delta < delta_min:
                continue
            first = record.start
        elif record.end - first > bytes_max:
            break
        stop, last = record.end, record.offset_delta
        kept += 1
    return (first, stop, kept, last) if kept else (end, end, 0, -1)


def refused_records(
    payload: Buffer,
    start: int,
    end: int,
    count: int,
    *,
    base_timestamp: int,
    timestamp_min: int,
    timestamp_max: int,
    keyed: bool,
    most: int,
) -> list[tuple[int, int]]:
    """(index, timestamp) of records outside a range of times, or without a key if `keyed`.

    A timestamp of -1 means that there is none.  At most `most` of them are named.
    """
    view = _view(payload, start, end)
    refused: list[tuple[int, int]] = []
    for index, record in enumerate(walk(view, start, end, count if most > 0 else 0, _I32_MAX)):
        timestamp = i64(base_timestamp + record.timestamp_delta)
        early_or_late = timestamp != -1 and not timestamp_min <= timestamp <= timestamp_max
        if early_or_late or (keyed and record.key_null):
            refused.append((index, timestamp))
            if len(refused) >= most:
                break
    return refused

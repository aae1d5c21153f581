"""Records inside the uncompressed payload of a batch: write, read, compact.

A record is: length, attributes (one byte), timestamp delta, offset delta, key length, key,
value length, value, number of headers; per header key length, key, value length, value.
Numbers are zigzag varints; a negative length means null; the length counts what follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from pentalog.kernels.facts import Buffer, Malformed
from pentalog.kernels.pure.varints import i64, put_varint, read_varint

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
Decoded: TypeAlias = tuple[int, int, bytes | None, bytes | None, Headers]
Encodable: TypeAlias = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]

_I64_MIN: Final = -(1 << 63)
_I64_MAX: Final = (1 << 63) - 1
_MALFORMED: Final = "the records of the batch are malformed at byte {}"


def _chunk(view: memoryview, position: int, end: int) -> tuple[int, int, int]:
    """(start, end, position behind it) of a field with a length; start is -1 if it is null."""
    length, position = read_varint(view, position, end)
    if length < 0:
        return -1, -1, position
    if length > end - position:
        raise Malformed(_MALFORMED.format(position))
    return position, position + length, position + length


def _put_chunk(out: bytearray, chunk: bytes | None) -> None:
    if chunk is None:
        out.append(1)
    else:
        view = memoryview(chunk).cast("B")
        put_varint(out, len(view))
        out += view


def encode_records(records: Sequence[Encodable]) -> tuple[bytearray, int, int]:
    """(payload, base timestamp, max timestamp); offset deltas count from 0."""
    payload = bytearray()
    if not records:
        return payload, -1, -1
    base_timestamp = timestamp_max = records[0][0]
    for index, (timestamp, key, value, headers) in enumerate(records):
        if not _I64_MIN <= timestamp <= _I64_MAX:
            raise ValueError(f"timestamp {timestamp} does not fit in 64 bits")
        timestamp_max = max(timestamp_max, timestamp)
        body = bytearray(1)
        put_varint(body, i64(timestamp - base_timestamp))
        put_varint(body, index)
        _put_chunk(body, key)
        _put_chunk(body, value)
        put_varint(body, len(headers))
        for name, content in headers:
            _put_chunk(body, name.encode("utf-8", "surrogateescape"))
            _put_chunk(body, content)
        put_varint(payload, len(body))
        payload += body
    return payload, base_timestamp, timestamp_max


def _range(payload: Buffer, start: int, end: int) -> memoryview:
    view = memoryview(payload).cast("B")
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"range {start}..{end} is not inside a buffer of {len(view)} bytes")
    return view


def _body(view: memoryview, position: int, end: int) -> tuple[int, int, int, int]:
    """(timestamp delta, offset delta, position of the key length, end) of one record."""
    length, position = read_varint(view, position, end)
    if not 1 <= length <= end - position:
        raise Malformed(_MALFORMED.format(position))
    end = position + length
    timestamp_delta, position = read_varint(view, position + 1, end)
    offset_delta, position = read_varint(view, position, end)
    return timestamp_delta, offset_delta, position, end


def _headers(view: memoryview, position: int, end: int) -> Headers:
    """The headers, which must end exactly where the record does."""
    count, position = read_varint(view, position, end)
    if not 0 <= count <= end - position:
        raise Malformed(_MALFORMED.format(position))
    headers = []
    for _ in range(count):
        name_start, name_end, position = _chunk(view, position, end)
        if name_start < 0:
            raise Malformed(_MALFORMED.format(position))
        value_start, value_end, position = _chunk(view, position, end)
        name = str(view[name_start:name_end], "utf-8", "surrogateescape")
        headers.append((name, None if value_start < 0 else bytes(view[value_start:value_end])))
    if position != end:
        raise Malformed(_MALFORMED.format(position))
    return tuple(headers)


def decode_records(
    payload: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_timestamp: int,
) -> list[Decoded]:
    """(offset, timestamp, key, value, headers) of each record.

    An `append_timestamp` that is not negative replaces every timestamp.
    """
    view = _range(payload, start, end)
    position = start
    records: list[Decoded] = []
    for _ in range(count):
        timestamp_delta, offset_delta, position, record_end = _body(view, position, end)
        key_start, key_end, position = _chunk(view, position, record_end)
        value_start, value_end, position = _chunk(view, position, record_end)
        headers = _headers(view, position, record_end)
        timestamp = append_timestamp
        if timestamp < 0:
            timestamp = i64(base_timestamp + timestamp_delta)
        records.append(
            (
                i64(base_offset + offset_delta),
                timestamp,
                None if key_start < 0 else bytes(view[key_start:key_end]),
                None if value_start < 0 else bytes(view[value_start:value_end]),
                headers,
            )
        )
        position = record_end
    if position != end:
        raise Malformed(_MALFORMED.format(position))
    return records


def newest_keys(
    payload: Buffer, start: int, end: int, count: int, base_offset: int, newest: dict[bytes, int]
) -> None:
    """Note in `newest` the offset of each record that has a key."""
    view = _range(payload, start, end)
    position = start
    for _ in range(count):
        _, offset_delta, position, record_end = _body(view, position, end)
        key_start, key_end, position = _chunk(view, position, record_end)
        _chunk(view, position, record_end)
        if key_start >= 0:
            newest[bytes(view[key_start:key_end])] = i64(base_offset + offset_delta)
        position = record_end
    if position != end:
        raise Malformed(_MALFORMED.format(position))


def keep_newest(
    payload: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    newest: dict[bytes, int],
    *,
    drop_tombstones: bool,
) -> tuple[bytearray, int, int]:
    """(payload of the records kept, how many, their largest timestamp or -1).

    Kept is the newest record of each key and all that `newest` does not cover.  Records are
    copied as they are: their deltas stay true because the batch keeps its base.
    """
    view = _range(payload, start, end)
    position = start
    kept = bytearray()
    records, timestamp_max = 0, -1
    for _ in range(count):
        record_start = position
        timestamp_delta, offset_delta, position, record_end = _body(view, position, end)
        key_start, key_end, position = _chunk(view, position, record_end)
        value_start, _, _ = _chunk(view, position, record_end)
        position = record_end
        if key_start < 0 or (drop_tombstones and value_start < 0):
            continue
        offset = i64(base_offset + offset_delta)
        if newest.get(bytes(view[key_start:key_end]), offset) <= offset:
            kept += view[record_start:record_end]
            records += 1
            timestamp_max = max(timestamp_max, i64(base_timestamp + timestamp_delta))
    if position != end:
        raise Malformed(_MALFORMED.format(position))
    return kept, records, timestamp_max


def shift_tombstones(
    payload: Buffer, start: int, end: int, count: int, later: int
) -> bytearray | None:
    """The payload with every timestamp delta `later` larger; None if no record is a tombstone.

    A tombstone is a record without a value.  Raises `Malformed`.
    """
    view = _range(payload, start, end)
    shifted = bytearray()
    tombstones = 0
    position = start
    for _ in range(count):
        timestamp_delta, _, after_offset, record_end = _body(view, position, end)
        _, _, after_key = _chunk(view, after_offset, record_end)
        value_start, _, _ = _chunk(view, after_key, record_end)
        tombstones += value_start < 0
        _, position = read_varint(view, position, end)
        body = bytearray(view[position : position + 1])
        put_varint(body, i64(timestamp_delta + later))
        _, position = read_varint(view, position + 1, record_end)
        body += view[position:record_end]
        put_varint(shifted, len(body))
        shifted += body
        position = record_end
    if position != end:
        raise Malformed(_MALFORMED.format(position))
    return shifted if tombstones else None

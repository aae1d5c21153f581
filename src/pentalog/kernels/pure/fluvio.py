"""Fluvio's batches to the log's and back, whole batches at once.

The two look alike and are not.

| Fluvio's batch | The log's batch |
|---|---|
| 57 bytes as in the log's, without a number of records | 61 bytes |
| attribute 0x10: a schema id (u32) follows the 57 bytes | attribute 0x10: transactional |
| number of records (i32), records | records |

| Fluvio's record | The log's record |
|---|---|
| length, attributes, timestamp delta, offset delta | the same |
| key: 0, or 1 and a length and bytes | key: a length (-1: null) and bytes |
| value: length and bytes | the same; -1: null |
| 0 | number of headers, headers |

A Fluvio client numbers records by their position in the batch, so a batch is split wherever an
offset is missing.  The schema id is a header of every record in the log, spelled in digits.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from pentalog.kernels.facts import Buffer, Malformed
from pentalog.kernels.pure.crc32c import crc32c
from pentalog.kernels.pure.varints import i64, put_varint, read_varint

SCHEMA_HEADER: Final = b"fluvio.schema_id"
"""The header that carries a schema id through the log."""

_I32_MAX: Final = (1 << 31) - 1
_LOG_HEADER_BYTES: Final = 61
_HEADER_BYTES: Final = 57
_FRAMING_BYTES: Final = 12
_RECORD_BYTES_MIN: Final = 7
_APPEND_TIME: Final = 0x08
_SCHEMA: Final = 0x10
_NO_SCHEMA: Final = -1
_SCHEMA_DIGITS_MAX: Final = 10
_HEADER: Final = struct.Struct(">qiibIhiqqqhi")
_I32: Final = struct.Struct(">i")
_U32: Final = struct.Struct(">I")
_I64: Final = struct.Struct(">q")
_MALFORMED: Final = "the records of the batch are malformed"


class _Parts(NamedTuple):
    timestamp_delta: int
    offset_delta: int
    key: memoryview | None
    value: memoryview
    schema: int
    end: int


def _head(view: memoryview, position: int, end: int) -> tuple[int, int, int, int]:
    """(timestamp delta, offset delta, position behind them, end of the record)."""
    length, position = read_varint(view, position, end)
    if length < 1 or length > end - position:
        raise Malformed(_MALFORMED)
    end = position + length
    timestamp_delta, position = read_varint(view, position + 1, end)
    offset_delta, position = read_varint(view, position, end)
    return timestamp_delta, offset_delta, position, end


def _theirs(view: memoryview, position: int, end: int) -> _Parts:
    timestamp_delta, _, position, end = _head(view, position, end)
    if position >= end or view[position] > 1:
        raise Malformed(_MALFORMED)
    key = None
    position += 1
    if view[position - 1]:
        size, position = read_varint(view, position, end)
        if not 0 <= size <= end - position:
            raise Malformed(_MALFORMED)
        key = view[position : position + size]
        position += size
    size, position = read_varint(view, position, end)
    if not 0 <= size <= end - position:
        raise Malformed(_MALFORMED)
    value = view[position : position + size]
    _, position = read_varint(view, position + size, end)
    if position != end:
        raise Malformed(_MALFORMED)
    return _Parts(timestamp_delta, 0, key, value, _NO_SCHEMA, end)


def fluvio_to_log(
    header: Buffer,
    position: int,
    section: Buffer,
    start: int,
    end: int,
    *,
    counted: bool,
    attributes: int,
    headers: bytes,
) -> bytearray:
    """A whole batch of the log, uncompressed, from one of Fluvio's.

    The 57 bytes of the batch's header are at `position` of `header`; its records, uncompressed,
    are `section[start:end]`, behind their number if `counted`.  Offsets and producer are not
    taken over.  `headers` is what every record gets as its headers, encoded with their number.
    Raises `Malformed`.
    """
    view = memoryview(section)
    in_buffer = 0 <= position <= len(header) - _HEADER_BYTES and 0 <= start <= end <= len(view)
    if not in_buffer:
        raise ValueError("a range is not inside its buffer")
    count = -1
    if counted:
        if end - start < 4:
            raise Malformed("the records of the batch end before their number")
        (count,) = _I32.unpack_from(view, start)
        start += 4
        if count < 1 or count > (end - start) // _RECORD_BYTES_MIN:
            raise Malformed("the number of records cannot be that of this batch")
    batch = bytearray(_LOG_HEADER_BYTES)
    records, delta_max = _translate(batch, view[start:end], count, headers)
    (base_timestamp,) = _I64.unpack_from(header, position + 27)
    if len(batch) > _I32_MAX:
        raise Malformed(_MALFORMED)
    _HEADER.pack_into(
        batch,
        0,
        0,
        len(batch) - _FRAMING_BYTES,
        -1,
        2,
        0,
        attributes,
        records - 1,
        base_timestamp,
        i64(base_timestamp + delta_max),
        -1,
        -1,
        -1,
    )
    _I32.pack_into(batch, _HEADER_BYTES, records)
    _U32.pack_into(batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def _translate(
    batch: bytearray, section: memoryview, count: int, headers: bytes
) -> tuple[int, int]:
    """Append the records, which must be `count` (-1: any); (how many, largest time delta)."""
    start, end = 0, len(section)
    records = delta_max = 0
    while start < end:
        if records == count:
            raise Malformed(_MALFORMED)
        parts = _theirs(section, start, end)
        body = bytearray(1)
        put_varint(body, parts.timestamp_delta)
        put_varint(body, records)
        put_varint(body, -1 if parts.key is None else len(parts.key))
        body += parts.key or b""
        put_varint(body, len(parts.value))
        body += parts.value
        body += headers
        put_varint(batch, len(body))
        batch += body
        delta_max = parts.timestamp_delta if records == 0 else max(delta_max, parts.timestamp_delta)
        records += 1
        start = parts.end
    if records == 0 or (count >= 0 and records != count):
        raise Malformed(_MALFORMED)
    return records, delta_max


def _schema_of(value: memoryview) -> int:
    text = bytes(value)
    if not 1 <= len(text) <= _SCHEMA_DIGITS_MAX or not all(48 <= digit <= 57 for digit in text):
        return _NO_SCHEMA
    number = int(text)
    return number if number < 1 << 32 else _NO_SCHEMA


def _chunk(view: memoryview, position: int, end: int) -> tuple[memoryview | None, int]:
    size, position = read_varint(view, position, end)
    if size < 0:
        return None, position
    if size > end - position:
        raise Malformed(_MALFORMED)
    return view[position : position + size], position + size


def _ours(view: memoryview, position: int, end: int) -> _Parts:
    timestamp_delta, offset_delta, position, end = _head(view, position, end)
    key, position = _chunk(view, position, end)
    value, position = _chunk(view, position, end)
    count, position = read_varint(view, position, end)
    if not 0 <= count <= end - position:
        raise Malformed(_MALFORMED)
    schema = _NO_SCHEMA
    for _ in range(count):
        name, position = _chunk(view, position, end)
        if name is None:
            raise Malformed(_MALFORMED)
        content, position = _chunk(view, position, end)
        if bytes(name) == SCHEMA_HEADER:
            schema = _schema_of(memoryview(b"") if content is None else content)
    if position != end:
        raise Malformed(_MALFORMED)
    return _Parts(timestamp_delta, offset_delta, key, value or memoryview(b""), schema, end)


class _Growing:
    """The answer being built: batches that are done, and the one that is open."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.batch = -1
        self.records = 0
        self.expected = 0
        self.schema = _NO_SCHEMA

    def begin(self, offset: int, schema: int, timestamp: int, timestamp_max: int) -> None:
        self.batch = len(self.out)
        self.records = 0
        self.schema = schema
        attributes = 0 if schema < 0 else _SCHEMA
        self.out += _HEADER.pack(
            offset, 0, -1, 2, 0, attributes, 0, timestamp, timestamp_max, -1, -1, -1
        )
        if schema >= 0:
            self.out += _U32.pack(schema)
        self.out += b"\0\0\0\0"

    def put(self, parts: _Parts, timestamp_delta: int) -> None:
        body = bytearray(1)
        put_varint(body, timestamp_delta)
        put_varint(body, self.records)
        body.append(parts.key is not None)
        if parts.key is not None:
            put_varint(body, len(parts.key))
            body += parts.key
        put_varint(body, len(parts.value))
        body += parts.value
        body.append(0)
        put_varint(self.out, len(body))
        self.out += body
        self.records += 1

    def close(self) -> None:
        if self.batch < 0:
            return
        at, out = self.batch, self.out
        _I32.pack_into(out, at + 8, len(out) - at - _FRAMING_BYTES)
        _I32.pack_into(out, at + 23, self.records - 1)
        _I32.pack_into(out, at + _HEADER_BYTES + (0 if self.schema < 0 else 4), self.records)
        _U32.pack_into(out, at + 17, crc32c(bytes(out[at + 21 :])))
        self.batch = -1


def log_to_fluvio(batches: Buffer, start: int, end: int, offset: int) -> tuple[bytearray, int]:
    """(Fluvio's batches, how many records) of the records from `offset` on.

    `batches[start:end]` are whole batches of the log, uncompressed.  Null values become empty
    ones, headers other than the schema id are left out.  Raises `Malformed`.
    """
    view = memoryview(batches)
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"range {start}..{end} is not inside a buffer of {len(view)} bytes")
    growing = _Growing()
    total = 0
    while start < end:
        if end - start < _LOG_HEADER_BYTES or view[start + 16] != 2 or view[start + 22] & 7:
            raise Malformed("not an uncompressed batch of format 2")
        fields = _HEADER.unpack_from(view, start)
        base_offset, length, base_timestamp, timestamp_max = (fields[n] for n in (0, 1, 7, 8))
        if not _LOG_HEADER_BYTES - _FRAMING_BYTES <= length <= end - start - _FRAMING_BYTES:
            raise Malformed("a batch does not end where it says")
        stamped = bool(view[start + 22] & _APPEND_TIME)
        (count,) = _I32.unpack_from(view, start + _HEADER_BYTES)
        position = start + _LOG_HEADER_BYTES
        start += length + _FRAMING_BYTES
        for _ in range(count):
            parts = _ours(view, position, start)
            position = parts.end
            here = i64(base_offset + parts.offset_delta)
            if here < offset:
                continue
            if growing.batch < 0 or growing.expected != here or growing.schema != parts.schema:
                growing.close()
                first = timestamp_max if stamped else base_timestamp
                growing.begin(here, parts.schema, first, timestamp_max)
            growing.put(parts, 0 if stamped else parts.timestamp_delta)
            growing.expected = i64(here + 1)
            total += 1
        if position != start:
            raise Malformed(_MALFORMED)
        growing.close()
    return growing.out, total


def fluvio_end(data: Buffer, start: int, end: int, count: int) -> int:
    """Where `count` of Fluvio's records end that start here; -1 if they do not."""
    view = memoryview(data)
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"range {start}..{end} is not inside a buffer of {len(view)} bytes")
    while count > 0:
        try:
            start = _theirs(view, start, end).end
        except Malformed:
            return -1
        count -= 1
    return start

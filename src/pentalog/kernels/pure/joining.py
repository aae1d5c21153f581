"""Several batches made one: a partition of a Kafka cluster takes one at a time."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from pentalog.kernels.facts import Buffer, Malformed
from pentalog.kernels.pure.crc32c import crc32c
from pentalog.kernels.pure.varints import i64, put_varint, read_varint

_I32_MAX: Final = (1 << 31) - 1
_HEADER_BYTES: Final = 61
_FRAMING_BYTES: Final = 12
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_U32: Final = struct.Struct(">I")
_MALFORMED: Final = "the records of a batch are malformed"


class _Part(NamedTuple):
    """One of the batches."""

    start: int
    end: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    timestamp_max: int
    records: int


def _part(view: memoryview, start: int, end: int) -> _Part:
    if end - start < _HEADER_BYTES or view[start + 16] != 2 or view[start + 22] & 7:
        raise Malformed("not an uncompressed batch of format 2")
    fields = _HEADER.unpack_from(view, start)
    length, attributes, last, base, top, count = (fields[n] for n in (1, 5, 6, 7, 8, 12))
    if not _HEADER_BYTES - _FRAMING_BYTES <= length <= end - start - _FRAMING_BYTES:
        raise Malformed("a batch does not end where it says")
    if last < 0 or count < 0:
        raise Malformed(_MALFORMED)
    return _Part(start, start + length + _FRAMING_BYTES, attributes, last, base, top, count)


def _taken(view: memoryview, position: int, end: int) -> tuple[int, int]:
    """(number, position behind it); the compiled twin does not say where there is none."""
    try:
        return read_varint(view, position, end)
    except Malformed:
        raise Malformed(_MALFORMED) from None


def _append(out: bytearray, view: memoryview, part: _Part, offset: int, later: int) -> None:
    """The records of a batch, `offset` further on and `later` in time."""
    position = part.start + _HEADER_BYTES
    for _ in range(part.records):
        length, position = _taken(view, position, part.end)
        if length < 1 or length > part.end - position:
            raise Malformed(_MALFORMED)
        end = position + length
        body = bytearray(view[position : position + 1])
        timestamp_delta, position = _taken(view, position + 1, end)
        offset_delta, position = _taken(view, position, end)
        if not 0 <= offset_delta <= part.last_offset_delta:
            raise Malformed(_MALFORMED)
        put_varint(body, i64(timestamp_delta + later))
        put_varint(body, offset_delta + offset)
        body += view[position:end]
        put_varint(out, len(body))
        out += body
        position = end
    if position != part.end:
        raise Malformed(_MALFORMED)


def join_batches(batches: Buffer, start: int, end: int, bytes_max: int) -> tuple[bytearray, int]:
    """(one batch, where the next one begins) of as many as fit into `bytes_max`.

    `batches[start:end]` are whole batches, uncompressed.  The first is always taken, the others as
    long as they have its attributes.  Of no producer.  Raises `Malformed`.
    """
    view = memoryview(batches)
    if not 0 <= start < end <= len(view):
        raise ValueError(f"range {start}..{end} is not inside a buffer of {len(view)} bytes")
    first = _part(view, start, end)
    out = bytearray(_HEADER_BYTES)
    records, offsets, top = 0, 0, first.timestamp_max
    while start < end:
        part = _part(view, start, end)
        before = len(out)
        if part.attributes != first.attributes or offsets + part.last_offset_delta > _I32_MAX:
            break
        _append(out, view, part, offsets, i64(part.base_timestamp - first.base_timestamp))
        if len(out) > (bytes_max if offsets else _I32_MAX):
            if not offsets:
                raise Malformed(_MALFORMED)
            del out[before:]
            break
        records += part.records
        offsets += part.last_offset_delta + 1
        top = max(top, part.timestamp_max)
        start = part.end
    fields = (0, len(out) - _FRAMING_BYTES, -1, 2, 0, first.attributes, offsets - 1)
    _HEADER.pack_into(out, 0, *fields, first.base_timestamp, top, -1, -1, -1, records)
    _U32.pack_into(out, 17, crc32c(memoryview(out)[21:]))
    return out, start

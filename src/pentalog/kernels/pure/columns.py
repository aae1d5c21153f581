"""Whole batches into columns that Arrow can take as they are.

Batches must be uncompressed; each is verified before its first row is made, and a batch that is
flawed leaves no row.  Control batches and those of aborted transactions give no rows.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import Final

from pentalog.kernels.column_facts import (
    DOORS,
    HEADERS,
    KEYS,
    OFFSETS,
    SPAN_ABORTED,
    SPAN_CONTROL,
    SPAN_MISSING,
    SPAN_RECORD,
    SPANS,
    TIMESTAMPS,
    VALUES,
    Chunks,
    Columns,
)
from pentalog.kernels.facts import (
    FLAW_CHECKSUM,
    FLAW_CODEC,
    FLAW_COUNT,
    FLAW_LENGTH,
    FLAW_MAGIC,
    FLAW_NONE,
    FLAW_OFFSET,
    FLAW_RECORD,
    FLAW_SHORT,
    BatchHeader,
    Buffer,
    Malformed,
)
from pentalog.kernels.pure.batch import batch_header
from pentalog.kernels.pure.crc32c import crc32c
from pentalog.kernels.pure.records import _chunk
from pentalog.kernels.pure.varints import i64, read_varint

_HEADER_BYTES: Final = 61
_FRAMING_BYTES: Final = 12
_LENGTH_MIN: Final = 49
_LENGTH_MAX: Final = (1 << 31) - 13
_RECORD_BYTES_MIN: Final = 7
_BASE_OFFSET_MAX: Final = 1 << 62
_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_PICKS_MAX: Final = 16
_DOORS_MAX: Final = 8
_TRIPLE: Final = struct.Struct("=qqq")

_Header = tuple[bytes, bytes | None]
_Row = tuple[int, int, bytes | None, bytes | None, list[_Header]]


class _Spans:
    """What offsets are, in order; those between two spans are missing."""

    def __init__(self, low: int, high: int) -> None:
        self.end = low
        self._high = high
        self.found: list[tuple[int, int, int]] = []

    def note(self, kind: int, first: int, behind: int) -> None:
        first, behind = max(first, self.end), min(behind, self._high)
        if first >= behind:
            return
        if first > self.end:
            self._add(SPAN_MISSING, self.end, first)
        self._add(kind, first, behind)

    def _add(self, kind: int, first: int, behind: int) -> None:
        if self.found and self.found[-1][0] == kind:
            first = self.found.pop()[1]
        self.found.append((kind, first, behind))
        self.end = behind


def decode_columns(
    data: Buffer,
    start: int,
    end: int,
    *,
    low: int,
    high: int,
    columns: int,
    aborted: bytes,
    picks: tuple[bytes, ...],
    doors: tuple[bytes, ...],
) -> Columns:
    """Rows of the records with offsets in `low..high`, as columns.

    `columns` is a sum of the numbers in `column_facts`.  `aborted` holds native i64 triples
    (producer id, first offset, last offset) in ascending order.  `picks` names headers whose values
    become columns of their own; `doors` names the doors by their number, the first one stands for
    numbers without a name.  It stops before a batch that begins at or behind `high`.
    """
    if len(picks) > _PICKS_MAX or not 0 < len(doors) <= _DOORS_MAX or len(aborted) % _TRIPLE.size:
        raise ValueError("too many names, or a list of aborted transactions that is cut")
    if max(map(len, doors)) > _RECORD_BYTES_MIN:
        raise ValueError(f"a door's name has at most {_RECORD_BYTES_MIN} bytes")
    view = memoryview(data).cast("B")
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"{start}..{end} is no part of {len(view)} bytes, or over 2 GiB")
    triples = list(_TRIPLE.iter_unpack(aborted))
    walks_headers = bool(picks) or bool(columns & HEADERS)
    spans = _Spans(low, high)
    rows: list[_Row] = []
    row_doors: list[bytes] = []
    position, next_offset, flaw, batches = start, low, FLAW_NONE, 0
    while position < end:
        flaw = _frame_flaw(view, position, end)
        if flaw:
            break
        header = batch_header(view, position)
        if header.base_offset >= high:
            break
        flaw = _batch_flaw(view, position, header)
        if flaw:
            break
        behind = header.base_offset + header.last_offset_delta + 1
        kind = _kind(header, triples)
        if kind == SPAN_RECORD:
            try:
                found = _rows(view, position, header, low, high, walks_headers)
            except Malformed:
                flaw = FLAW_RECORD
                break
            rows += found
            door = (header.attributes >> 8) & 7
            row_doors += [doors[door if door < len(doors) else 0]] * len(found)
            for row in found:
                spans.note(SPAN_RECORD, row[0], row[0] + 1)
            spans.note(SPAN_MISSING, spans.end, behind)
        else:
            spans.note(kind, header.base_offset, behind)
        batches += 1
        next_offset = max(next_offset, behind)
        position += header.size
    return _columns(
        columns, picks, rows, row_doors, spans, (position, next_offset, flaw, batches, len(rows))
    )


def _frame_flaw(view: memoryview, position: int, end: int) -> int:
    if end - position < 17:
        return FLAW_SHORT
    if view[position + 16] != 2:
        return FLAW_MAGIC
    length = int.from_bytes(view[position + 8 : position + 12], "big", signed=True)
    if not _LENGTH_MIN <= length <= _LENGTH_MAX:
        return FLAW_LENGTH
    return FLAW_SHORT if length > end - position - _FRAMING_BYTES else FLAW_NONE


def _batch_flaw(view: memoryview, position: int, header: BatchHeader) -> int:
    if crc32c(view[position + 21 : position + header.size]) != header.crc:
        return FLAW_CHECKSUM
    if header.attributes & 7:
        return FLAW_CODEC
    if not 0 <= header.base_offset <= _BASE_OFFSET_MAX:
        return FLAW_OFFSET
    room = (header.size - _HEADER_BYTES) // _RECORD_BYTES_MIN
    if header.last_offset_delta < 0 or not 0 <= header.records <= room:
        return FLAW_COUNT
    return FLAW_NONE


def _kind(header: BatchHeader, triples: list[tuple[int, int, int]]) -> int:
    if header.attributes & _CONTROL:
        return SPAN_CONTROL
    if header.attributes & _TRANSACTIONAL:
        place = bisect_right(triples, (header.producer_id, header.base_offset, (1 << 63) - 1))
        if place:
            producer_id, _, last_offset = triples[place - 1]
            if producer_id == header.producer_id and header.base_offset <= last_offset:
                return SPAN_ABORTED
    return SPAN_RECORD


def _rows(
    view: memoryview,
    position: int,
    header: BatchHeader,
    low: int,
    high: int,
    walks_headers: bool,
) -> list[_Row]:
    found: list[_Row] = []
    if header.base_offset + header.last_offset_delta + 1 <= low:
        return found
    end, before = position + header.size, -1
    position += _HEADER_BYTES
    appended = header.max_timestamp if header.attributes & _APPEND_TIME else None
    for _ in range(header.records):
        length, position = read_varint(view, position, end)
        if not 1 <= length <= end - position:
            raise Malformed("a record that does not end")
        stop = position + length
        timestamp_delta, position = read_varint(view, position + 1, stop)
        offset_delta, position = read_varint(view, position, stop)
        if not before < offset_delta <= header.last_offset_delta:
            raise Malformed("offsets that go back or leave the batch")
        before = offset_delta
        offset = header.base_offset + offset_delta
        if low <= offset < high:
            key_start, key_end, position = _chunk(view, position, stop)
            value_start, value_end, position = _chunk(view, position, stop)
            headers = _headers(view, position, stop) if walks_headers else []
            timestamp = (
                i64(header.base_timestamp + timestamp_delta) if appended is None else appended
            )
            found.append(
                (
                    offset,
                    i64(timestamp * 1000),
                    _bytes(view, key_start, key_end),
                    _bytes(view, value_start, value_end),
                    headers,
                )
            )
        position = stop
    if position != end:
        raise Malformed("bytes behind the last record")
    return found


def _headers(view: memoryview, position: int, end: int) -> list[_Header]:
    count, position = read_varint(view, position, end)
    if not 0 <= count <= end - position:
        raise Malformed("a number of headers that cannot be")
    found: list[_Header] = []
    for _ in range(count):
        start, stop, position = _chunk(view, position, end)
        if start < 0:
            raise Malformed("a header without a name")
        name = bytes(view[start:stop])
        start, stop, position = _chunk(view, position, end)
        found.append((name, _bytes(view, start, stop)))
    if position != end:
        raise Malformed("bytes behind the last header")
    return found


def _bytes(view: memoryview, start: int, end: int) -> bytes | None:
    return None if start < 0 else bytes(view[start:end])


def _columns(
    columns: int,
    picks: tuple[bytes, ...],
    rows: list[_Row],
    row_doors: list[bytes],
    spans: _Spans,
    outcome: tuple[int, int, int, int, int],
) -> Columns:
    headers = [header for row in rows for header in row[4]] if columns & HEADERS else []
    lists = [0]
    for row in rows:
        lists.append(lists[-1] + len(row[4]))
    return Columns(
        *outcome,
        _numbers([row[0] for row in rows]) if columns & OFFSETS else None,
        _numbers([row[1] for row in rows]) if columns & TIMESTAMPS else None,
        _chunks([row[2] for row in rows]) if columns & KEYS else None,
        _chunks([row[3] for row in rows]) if columns & VALUES else None,
        _chunks(row_doors) if columns & DOORS else None,
        bytearray(struct.pack(f"={len(lists)}i", *lists)) if columns & HEADERS else None,
        _chunks([name for name, _ in headers]) if columns & HEADERS else None,
        _chunks([value for _, value in headers]) if columns & HEADERS else None,
        tuple(_picked(name, rows) for name in picks),
        bytearray(b"".join(_TRIPLE.pack(*span) for span in spans.found))
        if columns & SPANS
        else None,
    )


def _picked(name: bytes, rows: list[_Row]) -> Chunks | None:
    found = [dict(row[4]) for row in rows]
    if not any(name in headers for headers in found):
        return None
    return _chunks([headers.get(name) for headers in found])


def _numbers(numbers: list[int]) -> bytearray:
    return bytearray(struct.pack(f"={len(numbers)}q", *numbers))


def _chunks(texts: list[bytes] | list[bytes | None]) -> Chunks:
    offsets, data, nulls = [0], bytearray(), 0
    validity = bytearray((len(texts) + 7) >> 3)
    for index, text in enumerate(texts):
        if text is None:
            nulls += 1
        else:
            data += text
            validity[index >> 3] |= 1 << (index & 7)
        offsets.append(len(data))
    packed = bytearray(struct.pack(f"={len(offsets)}i", *offsets))
    return Chunks(packed, data, validity if nulls else bytearray(), nulls)

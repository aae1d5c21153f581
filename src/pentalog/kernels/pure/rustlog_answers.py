"""Replies of the RustLog door, in both dialects; the layout is in `rustlog.py` beside this."""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Iterator
from typing import Final

from pentalog.kernels.facts import Buffer, Malformed
from pentalog.kernels.pure.batch import batch_header
from pentalog.kernels.pure.varints import read_varint
from pentalog.kernels.rustlog_facts import RustlogFetched

_PRODUCE: Final = 1
_FETCH: Final = 2
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_U32: Final = struct.Struct(">I")
_ACK: Final = struct.Struct(">IBQI")
_BUDGET_PER_RECORD: Final = 12
_APPEND_TIME: Final = 0x08
_MAGIC_END: Final = 17
_FRAMING_BYTES: Final = 12
_LENGTH_MIN: Final = 49
_LENGTH_MAX: Final = (1 << 31) - 1 - _FRAMING_BYTES
_I64_MAX: Final = (1 << 63) - 1
_TIMESTAMP_MS_MAX: Final = _I64_MAX // 1000
_JSON_HEAD: Final = b'{"type":"FetchResponse","records":['
_JSON_NEXT: Final = b'],"next_offset":%d}'
_JSON_FIXED_BYTES_MAX: Final = len(_JSON_HEAD) + len(_JSON_NEXT) - 2 + 20
_BINARY_FIXED_BYTES: Final = 13


def rustlog_acks(counts: bytes, base_offset: int, *, json: bool) -> bytes:
    """The frames of Produce replies, one per request of `RustlogRun.counts`."""
    if base_offset < 0 or len(counts) % 4:
        raise ValueError("a base offset below 0, or counts that are no u32")
    out = bytearray()
    for (count,) in struct.iter_unpack("=I", counts):
        if json:
            text = b'{"type":"ProduceResponse","base_offset":%d,"record_count":%d}'
            reply = text % (base_offset, count)
            out += _U32.pack(len(reply)) + reply
        else:
            out += _ACK.pack(_BINARY_FIXED_BYTES, _PRODUCE, base_offset, count)
        base_offset += count
    return bytes(out)


def _records(view: memoryview) -> Iterator[tuple[int, int, bytes]]:
    """(offset, timestamp, value) of every record; raises Malformed where they end to be sound."""
    position = 0
    while position < len(view):
        left = len(view) - position
        if left < _MAGIC_END or view[position + 16] != 2:
            raise Malformed(f"the batches are malformed at byte {position}")
        (length,) = struct.unpack_from(">i", view, position + 8)
        if not _LENGTH_MIN <= length <= min(_LENGTH_MAX, left - _FRAMING_BYTES):
            raise Malformed(f"the batches are malformed at byte {position}")
        header = batch_header(view, position)
        if header.attributes & 7 or header.records < 0:
            raise Malformed(f"the batches are malformed at byte {position}")
        yield from _batch_records(view[position : position + header.size])
        position += header.size


def _batch_records(batch: memoryview) -> Iterator[tuple[int, int, bytes]]:
    """One by one, so that what is sound before a flaw is still seen."""
    header = batch_header(batch, 0)
    append_ms = header.max_timestamp if header.attributes & _APPEND_TIME else -1
    position = _HEADER.size
    for _ in range(header.records):
        end = _record_end(batch, position)
        offset, time, value = _record(batch, position, end, header.base_timestamp, append_ms)
        if not 0 <= offset <= header.last_offset_delta:
            raise Malformed(f"the batches are malformed at byte {position}")
        wrapped = (header.base_offset + offset + (1 << 63)) % (1 << 64) - (1 << 63)
        yield wrapped, time, value
        position = end
    if position != len(batch):
        raise Malformed(f"the batches are malformed at byte {position}")


def _record_end(batch: memoryview, position: int) -> int:
    length, position = read_varint(batch, position, len(batch))
    if not 1 <= length <= len(batch) - position:
        raise Malformed(f"the batches are malformed at byte {position}")
    return position + length


def _record(
    batch: memoryview, position: int, end: int, base_timestamp: int, append_ms: int
) -> tuple[int, int, bytes]:
    """(offset delta, timestamp, value) of one record; its headers are not looked at."""
    _, position = read_varint(batch, position, end)
    delta, position = read_varint(batch, position + 1, end)
    time = (base_timestamp + delta + (1 << 63)) % (1 << 64) - (1 << 63)
    offset_delta, position = read_varint(batch, position, end)
    key_bytes, position = read_varint(batch, position, end)
    if key_bytes > end - position:
        raise Malformed(f"the batches are malformed at byte {position}")
    value_bytes, position = read_varint(batch, position + max(key_bytes, 0), end)
    if value_bytes > end - position:
        raise Malformed(f"the batches are malformed at byte {position}")
    value = bytes(batch[position : position + max(value_bytes, 0)])
    return offset_delta, time if append_ms < 0 else append_ms, value


def _encoded(offset: int, timestamp_ms: int, value: bytes, *, json: bool) -> bytes:
    if not json:
        return _U32.pack(len(value)) + value
    time_us = min(max(timestamp_ms, 0), _TIMESTAMP_MS_MAX) * 1000
    text = b'{"offset":%d,"timestamp":%d,"payload":"%s"}'
    return text % (offset, time_us, b64encode(value))


def rustlog_fetched(
    batches: Buffer,
    offset: int,
    *,
    end_offset: int,
    empty_offset: int,
    bytes_max: int,
    frame_bytes_max: int,
    json: bool,
) -> RustlogFetched:
    """The Fetch reply with the records from `offset` to `end_offset` that both limits let in.

    Each record costs 12 bytes and its value of `bytes_max`; the first is free if that is above 0.
    `empty_offset` is the next offset told if there is no record.
    """
    if offset < 0 or empty_offset < 0:
        raise ValueError("an offset below 0")
    room = frame_bytes_max - (_JSON_FIXED_BYTES_MAX if json else _BINARY_FIXED_BYTES)
    taken: list[bytes] = []
    payload_bytes, next_offset, too_large, budget = 0, empty_offset, -1, bytes_max
    try:
        for found, timestamp, value in _records(memoryview(batches).cast("B")):
            if found < offset:
                continue
            if bytes_max <= 0 or found >= end_offset:
                break
            if taken and len(value) + _BUDGET_PER_RECORD > budget:
                break
            encoded = _encoded(found, timestamp, value, json=json)
            size = len(encoded) + bool(json and taken)
            if size > room:
                if not taken:
                    too_large = found
                break
            room -= size
            budget -= len(value) + _BUDGET_PER_RECORD
            payload_bytes += len(value)
            next_offset = found + 1 if found < _I64_MAX else -_I64_MAX - 1
            taken.append(encoded)
    except Malformed:
        if not taken:
            raise
    frame = _frame(taken, next_offset, json=json)
    return RustlogFetched(frame, len(taken), payload_bytes, next_offset, too_large)


def _frame(taken: list[bytes], next_offset: int, *, json: bool) -> bytes:
    if json:
        reply = _JSON_HEAD + b",".join(taken) + _JSON_NEXT % (next_offset % (1 << 64))
    else:
        reply = struct.pack(">BI", _FETCH, len(taken)) + b"".join(taken)
        reply += struct.pack(">q", next_offset)
    return _U32.pack(len(reply)) + reply

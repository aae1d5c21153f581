"""Whole batches for the slow paths: built from records, and opened again."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, Literal

from pentalog.kernels import (
    BatchHeader,
    Buffer,
    Malformed,
    batch_header,
    crc32c,
    decode_records,
    encode_records,
)
from pentalog.model import compression
from pentalog.model.errors import BatchCorrupt, InvalidRecord
from pentalog.model.types import Offset, Record

HEADER_BYTES: Final = 61
CODEC_MASK: Final = 0x07
APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
"""The base timestamp is the time from which a compaction may drop the batch's tombstones.

Record timestamps are deltas to it as to any other base timestamp.
"""
DOOR_SHIFT: Final = 8
DOOR_MASK: Final = 0x0700
"""Attribute bits that number the door which built a batch; batches of Kafka producers have 0."""
DOORS: Final = ("kafka", "fluvio", "cursus", "rustlog", "blipmq")
"""Doors by that number."""

_FRAMING_BYTES: Final = 12
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CRC: Final = struct.Struct(">I")
_TIMESTAMP: Final = struct.Struct(">q")
_MARKER_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")
_MARKERS: Final[dict[int, Literal["abort", "commit"]]] = {0: "abort", 1: "commit"}
_MARKER_BYTES_MAX: Final = 4096


def build(
    records: Sequence[Record],
    *,
    timestamp_ms: int,
    codec: int = compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytearray:
    """One whole batch with base offset 0.

    Records without a time of their own get `timestamp_ms`.
    """
    if not records:
        raise InvalidRecord("a batch of no records was refused; give at least one record")
    payload, base_timestamp, timestamp_max = encode_records(
        [
            (
                timestamp_ms if record.timestamp_ms < 0 else record.timestamp_ms,
                record.key,
                record.value,
                record.headers,
            )
            for record in records
        ]
    )
    header = BatchHeader(
        base_offset=0,
        size=0,
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=TRANSACTIONAL if transactional else 0,
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=timestamp_max,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        records=len(records),
    )
    return rebuild(header, payload, count=len(records), codec=codec)


def rebuild(
    header: BatchHeader,
    payload: Buffer,
    *,
    count: int,
    codec: int,
    max_timestamp: int | None = None,
    level: int | None = None,
) -> bytearray:
    """The batch of `header` around another payload, given uncompressed.

    Offsets, producer and attributes stay as they were, so readers see the same records in the
    same places; `max_timestamp` None keeps that too.
    """
    body = payload if codec == compression.NONE else compression.compress(codec, payload, level)
    batch = bytearray(HEADER_BYTES)
    batch += body
    _HEADER.pack_into(
        batch,
        0,
        header.base_offset,
        len(batch) - _FRAMING_BYTES,
        header.leader_epoch,
        2,
        0,
        header.attributes & ~CODEC_MASK | codec,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp if max_timestamp is None else max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        count,
    )
    _CRC.pack_into(batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def restamped(whole: memoryview, max_timestamp: int) -> bytearray:
    """A copy of one batch, whose header names another newest timestamp."""
    batch = bytearray(whole)
    _TIMESTAMP.pack_into(batch, 35, max_timestamp)
    _CRC.pack_into(batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def door_of(attributes: int) -> int:
    """Return the number of the door that built a batch with these attributes."""
    return (attributes & DOOR_MASK) >> DOOR_SHIFT


def payload_of(data: Buffer, position: int, *, bytes_max: int) -> tuple[Buffer, BatchHeader]:
    """(records uncompressed, header) of the batch at `position`."""
    view = memoryview(data)
    header = _header_of(view, position)
    body = view[position + HEADER_BYTES : position + header.size]
    codec = header.attributes & CODEC_MASK
    if codec == compression.NONE:
        return body, header
    return compression.decompressed(codec, body, bytes_max=bytes_max), header


def records_of(data: Buffer, position: int, *, bytes_max: int) -> list[tuple[Offset, Record]]:
    """The records of the batch at `position` with their offsets."""
    payload, header = payload_of(data, position, bytes_max=bytes_max)
    append_timestamp = header.max_timestamp if header.attributes & APPEND_TIME else -1
    try:
        decoded = decode_records(
            payload,
            0,
            len(payload),
            header.records,
            header.base_offset,
            header.base_timestamp,
            append_timestamp,
        )
    except Malformed as error:
        raise BatchCorrupt(f"batch at offset {header.base_offset}: {error}") from error
    return [
        (offset, Record(value, key, headers, timestamp))
        for offset, timestamp, key, value, headers in decoded
    ]


def build_marker(
    *, commit: bool, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytearray:
    """The control batch that ends a producer's transaction in one partition."""
    payload, base_timestamp, timestamp_max = encode_records(
        [(timestamp_ms, _MARKER_KEY.pack(0, int(commit)), _MARKER_VALUE.pack(0, 0), ())]
    )
    header = BatchHeader(
        base_offset=0,
        size=0,
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=TRANSACTIONAL | CONTROL,
        last_offset_delta=0,
        base_timestamp=base_timestamp,
        max_timestamp=timestamp_max,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=-1,
        records=1,
    )
    return rebuild(header, payload, count=1, codec=compression.NONE)


def control_type(data: Buffer, position: int) -> Literal["abort", "commit"]:
    """How the control batch at `position` ends a transaction."""
    records = records_of(data, position, bytes_max=_MARKER_BYTES_MAX)
    key = records[0][1].key if records else None
    if key is not None and len(key) >= _MARKER_KEY.size:
        _, kind = _MARKER_KEY.unpack_from(key)
        if kind in _MARKERS:
            return _MARKERS[kind]
    raise BatchCorrupt(f"the control batch at byte {position} is neither commit nor abort")


def _header_of(view: memoryview, position: int) -> BatchHeader:
    if 0 <= position <= len(view) - HEADER_BYTES:
        header = batch_header(view, position)
        if header.magic == 2 and HEADER_BYTES <= header.size <= len(view) - position:
            return header
    raise BatchCorrupt(f"no whole batch of format 2 at byte {position} of {len(view)}")

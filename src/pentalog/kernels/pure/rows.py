"""Rows in columns become record batches, one partition's rows behind another's.

The layout of a record is in `records.py`.  Keys choose partitions as Kafka's own clients do:
murmur2 of the key, its highest bit cleared, modulo the number of partitions.
"""

from __future__ import annotations

import struct
from typing import Final

from pentalog.kernels.facts import Buffer, Malformed
from pentalog.kernels.pure.crc32c import crc32c
from pentalog.kernels.pure.records import encode_records
from pentalog.kernels.pure.varints import varint_bytes
from pentalog.kernels.row_facts import Cells, EncodedRows, HeaderCells, Producing

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CRC: Final = struct.Struct(">I")
_I32: Final = struct.Struct("=i")
_I64: Final = struct.Struct("=q")
_HEADER_BYTES: Final = 61
_FRAMING_BYTES: Final = 12
_I32_MAX: Final = (1 << 31) - 1
_U32: Final = (1 << 32) - 1
_U64: Final = (1 << 64) - 1
_KEY_FACTOR: Final = 0x9E3779B1
_VALUE_FACTOR: Final = 0x85EBCA77
_MURMUR_SEED: Final = 0x9747B28C
_MURMUR_FACTOR: Final = 0x5BD1E995


def place_rows(keys: Cells | None, count: int, partitions: int, keyless: int) -> bytearray:
    """The partition of each row, native i32; rows without a key go to `keyless`."""
    if count < 0 or partitions < 1 or not 0 <= keyless < partitions:
        raise ValueError(f"{count} rows, {partitions} partitions, {keyless} for rows without a key")
    placed = bytearray(4 * count)
    for row in range(count):
        key = None if keys is None else _cell(keys, row)
        place = keyless if key is None else (_murmur2(key) & _I32_MAX) % partitions
        _I32.pack_into(placed, 4 * row, place)
    return placed


def encode_rows(
    keys: Cells | None,
    values: Cells | None,
    headers: HeaderCells | None,
    timestamps: Buffer,
    placed: Buffer,
    count: int,
    sequences: bytearray,
    bytes_max: int,
    producing: Producing,
) -> EncodedRows:
    """Batches of the rows; a batch of several records stays within `bytes_max`.

    `timestamps` are native i64 milliseconds, `placed` is what `place_rows` gives.  `sequences` has
    the next sequence of every partition, native i32, and is moved on.
    """
    partitions = len(sequences) // 4
    rows: list[list[int]] = [[] for _ in range(partitions)]
    if count < 0 or len(timestamps) < 8 * count or len(placed) < 4 * count:
        raise Malformed(f"columns are shorter than {count} rows")
    for row in range(count):
        (place,) = _I32.unpack_from(placed, 4 * row)
        if not 0 <= place < partitions:
            raise Malformed(f"row {row} is for partition {place} of {partitions}")
        rows[place].append(row)
    data = bytearray()
    batches: list[tuple[int, int, int, int]] = []
    digest = 0
    for partition, chosen in enumerate(rows):
        records = []
        for row in chosen:
            key = None if keys is None else _cell(keys, row)
            value = None if values is None else _cell(values, row)
            digest += _row_digest(key, value)
            (timestamp,) = _I64.unpack_from(timestamps, 8 * row)
            records.append((timestamp, key, value, _headers(headers, row)))
        for payload, base, timestamp_max, size in _cut(records, bytes_max):
            start = len(data)
            (sequence,) = _I32.unpack_from(sequences, 4 * partition)
            data += _batch(payload, base, timestamp_max, size, sequence, producing)
            after = sequence + size
            _I32.pack_into(
                sequences, 4 * partition, after if after <= _I32_MAX else after - _I32_MAX - 1
            )
            batches.append((partition, start, len(data), size))
    return EncodedRows(data, batches, digest & _U64)


def _cut(
    records: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    bytes_max: int,
) -> list[tuple[bytearray, int, int, int]]:
    """(payload, base timestamp, largest timestamp, records) of batches that fit."""
    found = []
    start = 0
    while start < len(records):
        size, end = _HEADER_BYTES, start
        while end < len(records):
            # A record's size depends on its place in the batch and on the batch's first timestamp.
            size += _record_bytes(records[end], end - start, records[start][0])
            if end > start and size > bytes_max:
                break
            end += 1
        found.append((*encode_records(records[start:end]), end - start))
        start = end
    return found


def _record_bytes(
    record: tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]],
    index: int,
    base: int,
) -> int:
    timestamp, key, value, headers = record
    delta = (timestamp - base + (1 << 63) & _U64) - (1 << 63)
    body = 1 + varint_bytes(delta) + varint_bytes(index) + varint_bytes(len(headers))
    chunks = [key, value]
    for name, content in headers:
        chunks += [name.encode("utf-8", "surrogateescape"), content]
    for chunk in chunks:
        body += 1 if chunk is None else varint_bytes(len(chunk)) + len(chunk)
    return varint_bytes(body) + body


def _batch(
    payload: bytearray, base: int, timestamp_max: int, count: int, sequence: int, by: Producing
) -> bytearray:
    batch = bytearray(_HEADER_BYTES) + payload
    _HEADER.pack_into(
        batch,
        0,
        0,
        len(batch) - _FRAMING_BYTES,
        -1,
        2,
        0,
        by.attributes,
        count - 1,
        base,
        timestamp_max,
        by.producer_id,
        by.producer_epoch,
        sequence,
        count,
    )
    _CRC.pack_into(batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def _cell(cells: Cells, row: int) -> bytes | None:
    row += cells.first
    if row < 0 or len(cells.offsets) // 4 < row + 2:
        raise Malformed(f"row {row} is not in its column")
    if cells.validity is not None:
        if len(cells.validity) <= row >> 3:
            raise Malformed(f"row {row} is not in its column")
        if not memoryview(cells.validity)[row >> 3] >> (row & 7) & 1:
            return None
    start, end = struct.unpack_from("=ii", cells.offsets, 4 * row)
    if not 0 <= start <= end <= len(cells.data):
        raise Malformed(f"bytes {start}..{end} of row {row} are not in its column")
    return bytes(memoryview(cells.data)[start:end])


def _headers(headers: HeaderCells | None, row: int) -> list[tuple[str, bytes | None]]:
    if headers is None:
        return []
    row += headers.first
    if row < 0 or len(headers.offsets) // 4 < row + 2:
        raise Malformed(f"row {row} is not in its column")
    if headers.validity is not None:
        if len(headers.validity) <= row >> 3:
            raise Malformed(f"row {row} is not in its column")
        if not memoryview(headers.validity)[row >> 3] >> (row & 7) & 1:
            return []
    start, end = struct.unpack_from("=ii", headers.offsets, 4 * row)
    if not 0 <= start <= end:
        raise Malformed(f"headers {start}..{end} of row {row} are not in their column")
    found = []
    for entry in range(start, end):
        name = _cell(headers.names, entry)
        if name is None:
            raise Malformed(f"row {row} has a header without a name")
        found.append((name.decode("utf-8", "surrogateescape"), _cell(headers.values, entry)))
    return found


def _row_digest(key: bytes | None, value: bytes | None) -> int:
    sizes = 0 if key is None else (len(key) + 1) * _KEY_FACTOR
    sizes += 0 if value is None else (len(value) + 1) * _VALUE_FACTOR
    return sizes + crc32c(value or b"", crc32c(key or b""))


def _murmur2(key: bytes) -> int:
    total = _MURMUR_SEED ^ len(key)
    whole = len(key) & ~3
    for (word,) in struct.iter_unpack("<I", key[:whole]):
        mixed = word * _MURMUR_FACTOR & _U32
        mixed = (mixed ^ mixed >> 24) * _MURMUR_FACTOR & _U32
        total = total * _MURMUR_FACTOR & _U32 ^ mixed
    if whole < len(key):
        total ^= int.from_bytes(key[whole:], "little")
        total = total * _MURMUR_FACTOR & _U32
    total = (total ^ total >> 13) * _MURMUR_FACTOR & _U32
    return total ^ total >> 15

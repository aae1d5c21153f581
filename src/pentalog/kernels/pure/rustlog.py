"""Records of the RustLog door: its requests to batches, and batches to its replies.

Binary dialect, big-endian, every frame with a u32 length in front:

    Produce   u8 1, u16 + topic, u32 partition, u32 count, count x (u32 + bytes)
    its reply u8 1, u64 base offset, u32 count
    a Fetch's u8 2, u32 count, count x (u32 + bytes), u64 next offset

In JSON the replies are `{"type":"ProduceResponse",...}` and `{"type":"FetchResponse",...}`, with
payloads in base64.  A record of either dialect is a value: no key, no headers.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from pentalog.kernels.facts import Buffer, Facts
from pentalog.kernels.pure.batch import check_batches
from pentalog.kernels.pure.crc32c import crc32c
from pentalog.kernels.pure.records import encode_records
from pentalog.kernels.pure.varints import varint_bytes
from pentalog.kernels.rustlog_facts import RustlogRun

_PRODUCE: Final = 1
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CRC: Final = struct.Struct(">I")
_U32: Final = struct.Struct(">I")
_RECORD_OVERHEAD_MAX: Final = 24
_FRAMING_BYTES: Final = 12


class _Packer:
    """Batches in the making: values in, whole batches one behind another out."""

    def __init__(self, attributes: int, timestamp_ms: int, batch_bytes_max: int) -> None:
        self.out = bytearray()
        self._attributes = attributes
        self._timestamp_ms = timestamp_ms
        self._batch_bytes_max = batch_bytes_max
        self._values: list[bytes] = []
        self._size = 0

    def group(self, size: int) -> None:
        """What follows takes at most `size` bytes and shall be in one batch if it fits one."""
        if self._values and self._size + size > self._batch_bytes_max:
            self.close()

    def put(self, value: bytes) -> None:
        size = _record_size(len(value), len(self._values))
        if self._values and self._size + size > self._batch_bytes_max:
            self.close()
            size = _record_size(len(value), 0)
        if not self._values:
            self._size = _HEADER.size
        self._size += size
        self._values.append(value)

    def close(self) -> None:
        if not self._values:
            return
        time, count = self._timestamp_ms, len(self._values)
        batch = bytearray(_HEADER.size)
        batch += encode_records([(time, None, value, ()) for value in self._values])[0]
        length = len(batch) - _FRAMING_BYTES
        fields = (0, length, -1, 2, 0, self._attributes, count - 1, time, time, -1, -1, -1, count)
        _HEADER.pack_into(batch, 0, *fields)
        _CRC.pack_into(batch, 17, crc32c(memoryview(batch)[21:]))
        self.out += batch
        self._values = []

    def finish(self) -> Facts:
        self.close()
        return check_batches(self.out, 0, len(self.out))


def _record_size(value_bytes: int, index: int) -> int:
    body = 4 + varint_bytes(index) + varint_bytes(value_bytes) + value_bytes
    return varint_bytes(body) + body


class _Produce(NamedTuple):
    topic: bytes
    partition: int
    values: list[bytes]
    records_bytes: int
    end: int


def _take_produce(view: memoryview, at: int, end: int, frame_bytes_max: int) -> _Produce | None:
    """A whole, well-formed Produce of at least one record, if there is one."""
    if end - at < 4:
        return None
    size = _U32.unpack_from(view, at)[0]
    at += 4
    if size > frame_bytes_max or not 11 <= size <= end - at or view[at] != _PRODUCE:
        return None
    end = at + size
    topic_bytes = int.from_bytes(view[at + 1 : at + 3], "big")
    if topic_bytes > size - 11:
        return None
    topic = bytes(view[at + 3 : at + 3 + topic_bytes])
    at += 3 + topic_bytes
    partition, count = struct.unpack_from(">II", view, at)
    at += 8
    start = at
    if not 0 < count <= (end - at) // 4:
        return None
    values = []
    for _ in range(count):
        if end - at < 4:
            return None
        length = _U32.unpack_from(view, at)[0]
        at += 4
        if length > end - at:
            return None
        values.append(bytes(view[at : at + length]))
        at += length
    return _Produce(topic, partition, values, end - start, end)


def _range(data: Buffer, start: int, end: int) -> memoryview:
    view = memoryview(data).cast("B")
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"range {start}..{end} is not inside a buffer of {len(view)} bytes")
    return view


def rustlog_flaw(data: Buffer, start: int, end: int, count: int) -> int:
    """What is wrong with so many records: 0 nothing, 1 a length, 2 a value is cut off."""
    view = _range(data, start, end)
    at = start
    for _ in range(count):
        if end - at < 4:
            return 1
        length = _U32.unpack_from(view, at)[0]
        at += 4
        if length > end - at:
            return 2
        at += length
    return 0


def rustlog_run(
    data: Buffer,
    start: int,
    end: int,
    *,
    frame_bytes_max: int,
    run_bytes_max: int,
    batch_bytes_max: int,
    attributes: int,
    timestamp_ms: int,
) -> RustlogRun | None:
    """The Produce requests at `start` that ask the same; None if there is none to take.

    Neighbouring requests share batches: each request's records are together, and in one batch
    unless they are larger than `batch_bytes_max`.
    """
    view = _range(data, start, end)
    first = asked = _take_produce(view, start, end, frame_bytes_max)
    if first is None:
        return None
    packer = _Packer(attributes, timestamp_ms, batch_bytes_max)
    counts: list[int] = []
    used = start
    while asked is not None and asked[:2] == first[:2]:
        if counts and asked.end - start > run_bytes_max:
            break
        values = asked.values
        packer.group(asked.records_bytes + len(values) * (_RECORD_OVERHEAD_MAX - 4))
        for value in values:
            packer.put(value)
        counts.append(len(values))
        used = asked.end
        asked = _take_produce(view, used, end, frame_bytes_max)
    facts = packer.finish()
    packed = struct.pack(f"={len(counts)}I", *counts)
    return RustlogRun(first.topic, first.partition, used, packed, packer.out, facts)


def rustlog_batches(
    requests: list[list[bytes]], *, batch_bytes_max: int, attributes: int, timestamp_ms: int
) -> tuple[bytes, bytearray, Facts]:
    """(counts as in `RustlogRun`, batches, their facts) of the values of each request."""
    if not isinstance(requests, list) or any(not isinstance(values, list) for values in requests):
        raise TypeError("requests are a list of lists of bytes")
    if any(type(value) is not bytes for values in requests for value in values):
        raise TypeError("a record is bytes")
    if not requests or not all(requests):
        raise ValueError("no records: a batch has at least one")
    packer = _Packer(attributes, timestamp_ms, batch_bytes_max)
    for values in requests:
        packer.group(sum(len(value) + _RECORD_OVERHEAD_MAX for value in values))
        for value in values:
            packer.put(value)
    facts = packer.finish()
    return struct.pack(f"={len(requests)}I", *map(len, requests)), packer.out, facts

"""BlipMQ, a whole socket buffer at a time: runs of frames, those of PUBLISH as record batches.

A frame is u32 length, u8 type, u64 correlation id, payload; the length counts what follows it.
PUBLISH: u8 qos, u16 topic length, topic, message.  POLL and ACK: u64 subscription id.  NACK: u16
code, u16 text length, text.  All numbers are big-endian.
"""

from __future__ import annotations

import struct
from typing import Final

from pentalog.kernels.blipmq_facts import (
    REFUSED_LENGTH,
    REFUSED_TYPE,
    BlipFrames,
    NumberRun,
    PublishRun,
)
from pentalog.kernels.facts import Buffer, Facts
from pentalog.kernels.pure.crc32c import crc32c
from pentalog.kernels.pure.varints import put_varint

_FRAME: Final = struct.Struct(">IB8s")
_PUBLISH: Final = struct.Struct(">BH")
_NUMBER: Final = struct.Struct(">Q")
_BATCH: Final = struct.Struct(">qiibIhiqqqhii")

_PUBLISH_TYPE: Final = 3
_ACK_TYPE: Final = 5
_POLL_TYPE: Final = 9
_LENGTH_MIN: Final = 9
_HEADER_BYTES: Final = 61
_ATTRIBUTES: Final = 4 << 8
_QOS_HEADER: Final = b"\x02\x14blipmq.qos\x020"
"""One record header `blipmq.qos` of `0`; records without it have quality 1."""


def _number(number: int) -> bytes:
    out = bytearray()
    put_varint(out, number)
    return bytes(out)


class _Batch:
    """The run that is open: its frames and the records made of them."""

    def __init__(self, qos: int, topic: bytes, start: int) -> None:
        self.qos = qos
        self.topic = topic
        self.start = start
        self.end = start
        self.count = 0
        self.data = bytearray(_HEADER_BYTES)
        self.correlations = bytearray()
        self._tail = _QOS_HEADER if qos == 0 else b"\0"

    def record(self, message: bytes) -> bytes:
        body = b"\0\0" + _number(self.count) + b"\1" + _number(len(message)) + message
        return _number(len(body) + len(self._tail)) + body + self._tail

    def add(self, record: bytes, correlation: bytes, end: int) -> None:
        self.data += record
        self.correlations += correlation
        self.count += 1
        self.end = end

    def close(self, timestamp_ms: int) -> PublishRun:
        data, count = self.data, self.count
        times = (timestamp_ms, timestamp_ms)
        _BATCH.pack_into(
            data, 0, 0, len(data) - 12, -1, 2, 0, _ATTRIBUTES, count - 1, *times, -1, -1, -1, count
        )
        struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
        facts = Facts(
            flaw=0,
            flaw_position=len(data),
            batches=1,
            offsets=count,
            records=count,
            batch_bytes_max=len(data),
            timestamp_max=timestamp_ms,
            attributes_any=_ATTRIBUTES,
            codecs=1,
            producer_id=-1,
            producer_epoch=-1,
            sequence_first=-1,
            sequence_last=-1,
            chained=True,
        )
        return PublishRun(
            self.qos, self.topic, self.start, self.end, data, facts, bytes(self.correlations)
        )


class _Split:
    def __init__(self, timestamp_ms: int, batch_bytes_max: int) -> None:
        self.items: list[PublishRun | NumberRun | tuple[int, int]] = []
        self._timestamp_ms = timestamp_ms
        self._batch_bytes_max = batch_bytes_max
        self._batch: _Batch | None = None
        self._numbers: NumberRun | None = None

    def close(self) -> None:
        if self._batch is not None:
            self.items.append(self._batch.close(self._timestamp_ms))
            self._batch = None
        if self._numbers is not None:
            self.items.append(self._numbers)
            self._numbers = None

    def publish(self, view: memoryview, start: int, end: int, correlation: bytes) -> bool:
        """Take a PUBLISH frame; False if it is not one to be joined."""
        body = start + _FRAME.size
        if end - body < _PUBLISH.size:
            return False
        qos, topic_bytes = _PUBLISH.unpack_from(view, body)
        message = body + _PUBLISH.size + topic_bytes
        if qos > 1 or topic_bytes == 0 or message > end:
            return False
        topic = bytes(view[message - topic_bytes : message])
        batch = self._batch
        if batch is None or batch.qos != qos or batch.topic != topic:
            batch = None
        else:
            record = batch.record(bytes(view[message:end]))
            if len(batch.data) + len(record) > self._batch_bytes_max:
                batch = None
        if batch is None:
            self.close()
            batch = self._batch = _Batch(qos, topic, start)
            record = batch.record(bytes(view[message:end]))
        batch.add(record, correlation, end)
        return True

    def number(self, view: memoryview, start: int, end: int, kind: int, correlation: bytes) -> bool:
        """Take a POLL or ACK frame; False if it is not one to be joined."""
        body = start + _FRAME.size
        if end - body != _NUMBER.size:
            return False
        (subscription,) = _NUMBER.unpack_from(view, body)
        if subscription == 0:
            return False
        run = self._numbers
        if run is None or run.kind != kind or run.subscription != subscription:
            self.close()
            self._numbers = NumberRun(kind, subscription, start, end, correlation)
        else:
            self._numbers = run._replace(end=end, correlations=run.correlations + correlation)
        return True


def split_blipmq(
    data: Buffer,
    start: int,
    end: int,
    *,
    timestamp_ms: int,
    frame_bytes_max: int,
    batch_bytes_max: int,
) -> BlipFrames:
    """Take every whole frame out of `data`; publishes, polls and acknowledgements joined in runs.

    A batch grows to `batch_bytes_max`; a single message may make it larger.
    """
    view = memoryview(data)
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"range {start}..{end} is not inside a buffer of {len(view)} bytes")
    split = _Split(timestamp_ms, batch_bytes_max)
    position = start
    wanted = refused = 0
    while end - position >= 4:
        length = int.from_bytes(view[position : position + 4], "big")
        if not _LENGTH_MIN <= length <= frame_bytes_max:
            refused = REFUSED_LENGTH
            break
        if length > end - position - 4:
            wanted = 4 + length
            break
        _, kind, correlation = _FRAME.unpack_from(view, position)
        after = position + 4 + length
        if not 1 <= kind <= _POLL_TYPE:
            refused = REFUSED_TYPE
            break
        joined = False
        if kind == _PUBLISH_TYPE:
            joined = split.publish(view, position, after, correlation)
        elif kind in (_ACK_TYPE, _POLL_TYPE):
            joined = split.number(view, position, after, kind, correlation)
        if not joined:
            split.close()
            split.items.append((position + 4, after))
        position = after
    split.close()
    return BlipFrames(split.items, position, wanted, refused)

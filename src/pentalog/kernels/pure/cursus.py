"""Cursus batches to record batches.

A batch frame, big-endian, without its length of 4 bytes:

    magic       ba 7c
    topic       u16 length and bytes
    partition   i32, or as the document has it: u16 length and digits
    acks        u8 length and bytes; in the document: u16 length
    idempotent  u8
    first and last sequence number, u64 each; number of messages, i32
    messages    offset u64, sequence number u64, producer and key (u16 length and bytes each),
                epoch i64, payload (u32 length and bytes), event type (u16), schema version u32,
                aggregate version u64, metadata (u16)

In the log the fields only Cursus has are headers with the prefix `cursus.`; empty and zero ones are
not kept.  A header of that name that cannot be such a field is anybody's.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from pentalog.kernels.cursus_facts import (
    CURSUS_COUNT,
    CURSUS_MESSAGE,
    CURSUS_MESSAGES_MAX,
    CURSUS_PARTITION,
    CURSUS_REST,
    CURSUS_SHORT,
    CURSUS_SOUND,
    CURSUS_TOPIC,
    CursusFrame,
)
from pentalog.kernels.facts import Buffer, Facts, Malformed
from pentalog.kernels.pure.batch import check_batches
from pentalog.kernels.pure.crc32c import crc32c
from pentalog.kernels.pure.varints import put_varint

_TOPIC_BYTES_MAX: Final = 249
_PARTITION_DIGITS_MAX: Final = 10
_HEADER_BYTES: Final = 61
_FRAMING_BYTES: Final = 12
_U64: Final = (1 << 64) - 1
_I31: Final = (1 << 31) - 1
_COUNTS: Final = struct.Struct(">BQQi")
_BATCH: Final = struct.Struct(">qiibIhiqqqhii")


class Short(Exception):
    """The bytes end too soon."""


class Message(NamedTuple):
    seq: int = 0
    producer: bytes = b""
    key: bytes = b""
    epoch: int = 0
    payload: bytes = b""
    event_type: bytes = b""
    schema: int = 0
    aggregate: int = 0
    metadata: bytes = b""


class Walk:
    def __init__(self, data: memoryview, position: int, end: int) -> None:
        self._data = data
        self.position = position
        self.end = end

    def take(self, size: int) -> bytes:
        start = self.position
        if size > self.end - start:
            raise Short
        self.position = start + size
        return bytes(self._data[start : self.position])

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "big", signed=signed)

    def text(self) -> bytes:
        return self.take(self.number(2))

    def message(self) -> Message:
        self.take(8)
        seq = self.number(8)
        producer = self.text()
        key = self.text()
        epoch = self.number(8, signed=True)
        payload = self.take(self.number(4))
        event_type = self.text()
        schema = self.number(4)
        aggregate = self.number(8)
        metadata = self.text()
        return Message(seq, producer, key, epoch, payload, event_type, schema, aggregate, metadata)

    def varint(self) -> int:
        value = shift = 0
        while True:
            if shift > 63:
                raise Short
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        value &= _U64
        return (value >> 1) ^ -(value & 1)

    def chunk(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)


def lend(data: Buffer, start: int, end: int) -> memoryview:
    view = memoryview(data)
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"range {start}..{end} is not inside a buffer of {len(view)} bytes")
    return view


def _flawed(flaw: int) -> CursusFrame:
    return CursusFrame(flaw, False, b"", 0, b"", False, 0, 0, b"", 0, 0, 0, True, 0, 0, 0)


def read_cursus(data: Buffer, start: int, end: int) -> CursusFrame:
    """Walk one batch frame; it must begin with the magic."""
    walk = Walk(lend(data, start, end), start, end)
    if end - start < 4:
        return _flawed(CURSUS_SHORT)
    walk.take(2)
    try:
        topic = walk.text()
    except Short:
        return _flawed(CURSUS_TOPIC)
    if not 1 <= len(topic) <= _TOPIC_BYTES_MAX:
        return _flawed(CURSUS_TOPIC)
    try:
        size = walk.number(2)
        if size > _PARTITION_DIGITS_MAX:
            return _flawed(CURSUS_PARTITION)
        if size:
            digits = walk.take(size)
            if not digits.isdigit():
                return _flawed(CURSUS_PARTITION)
            partition = int(digits)
            acks = walk.text()
        else:
            partition = walk.number(2)
            acks = walk.take(walk.number(1))
        idempotent, _, _, count = _COUNTS.unpack(walk.take(_COUNTS.size))
    except Short:
        return _flawed(CURSUS_SHORT)
    if not 0 <= count <= CURSUS_MESSAGES_MAX:
        return _flawed(CURSUS_COUNT)
    messages = walk.position
    return _walk_messages(
        walk, bool(size), topic, partition, acks, bool(idempotent), messages, count
    )


def _walk_messages(
    walk: Walk,
    document: bool,
    topic: bytes,
    partition: int,
    acks: bytes,
    idempotent: bool,
    messages: int,
    count: int,
) -> CursusFrame:
    last = Message()
    seq_first = break_after = break_got = largest = 0
    one_producer, broken = True, False
    for index in range(count):
        start = walk.position
        try:
            message = walk.message()
        except Short:
            return _flawed(CURSUS_MESSAGE)
        if index == 0:
            seq_first = message.seq
        else:
            if (message.producer, message.epoch) != (last.producer, last.epoch):
                one_producer = False
            if not broken and message.seq != (last.seq + 1) & _U64:
                broken, break_after, break_got = True, last.seq, message.seq
        largest = max(largest, walk.position - start)
        last = message
    if walk.position != walk.end:
        return _flawed(CURSUS_REST)
    return CursusFrame(
        CURSUS_SOUND,
        document,
        topic,
        partition,
        acks,
        idempotent,
        messages,
        count,
        last.producer,
        last.epoch,
        seq_first,
        last.seq,
        one_producer,
        break_after,
        break_got,
        largest,
    )


def cursus_cut(
    data: Buffer, start: int, end: int, count: int, *, bytes_max: int
) -> tuple[int, int]:
    """(messages, where they end) of those of `count` that fit in `bytes_max`; at least one."""
    walk = Walk(lend(data, start, end), start, end)
    taken, position = 0, start
    while taken < count:
        try:
            walk.message()
        except Short:
            raise Malformed(f"message {taken} ends too soon: walk the frame before") from None
        if taken and walk.position - start > bytes_max:
            break
        position = walk.position
        taken += 1
    return taken, position


def cursus_batches(
    data: Buffer,
    start: int,
    end: int,
    count: int,
    *,
    skip: int,
    timestamp_ms: int,
    attributes: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    batch_bytes_max: int,
) -> tuple[bytearray, Facts]:
    """(record batches, their facts) of the messages behind the first `skip`."""
    if not 0 <= skip < count or not 0 <= base_sequence + (producer_id < 0) <= _I31:
        raise ValueError(f"{skip} of {count} messages to skip, sequence {base_sequence}")
    walk = Walk(lend(data, start, end), start, end)
    out = bytearray()
    payload = bytearray()
    records = 0

    def finish() -> None:
        nonlocal records, base_sequence
        size = _HEADER_BYTES + len(payload)
        batch = bytearray(_HEADER_BYTES) + payload
        _BATCH.pack_into(
            *(batch, 0, 0, size - _FRAMING_BYTES, -1, 2, 0, attributes, records - 1),
            *(timestamp_ms, timestamp_ms, producer_id, producer_epoch, base_sequence, records),
        )
        struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
        out.extend(batch)
        if producer_id >= 0:
            base_sequence = (base_sequence + records) & _I31
        payload.clear()
        records = 0

    for index in range(count):
        try:
            message = walk.message()
        except Short:
            raise Malformed(f"message {index} ends too soon: walk the frame before") from None
        if index < skip:
            continue
        record = _record(message, records)
        if records and _HEADER_BYTES + len(payload) + len(record) > batch_bytes_max:
            finish()
            record = _record(message, 0)
        payload += record
        records += 1
    finish()
    return out, check_batches(out, 0, len(out))


def fnv1a_64(data: bytes) -> int:
    """The hash by which keys are shared out to partitions."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def _record(message: Message, index: int) -> bytes:
    fields = (
        (b"cursus.producer_id", message.producer),
        (b"cursus.seq", b"%d" % message.seq if message.seq else b""),
        (b"cursus.epoch", b"%d" % message.epoch if message.epoch else b""),
        (b"cursus.event_type", message.event_type),
        (b"cursus.schema_version", b"%d" % message.schema if message.schema else b""),
        (b"cursus.aggregate_version", b"%d" % message.aggregate if message.aggregate else b""),
        (b"cursus.metadata", message.metadata),
    )
    own = [(name, value) for name, value in fields if value]
    body = bytearray(b"\0\0") + _varint(index)
    body += _chunk(message.key) if message.key else _varint(-1)
    body += _chunk(message.payload) + _varint(len(own))
    for name, value in own:
        body += _chunk(name) + _chunk(value)
    return _varint(len(body)) + bytes(body)


def _chunk(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    out = bytearray()
    put_varint(out, number)
    return bytes(out)

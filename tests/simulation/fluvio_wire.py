"""Fluvio requests and answers, as bytes, for the simulated clients.

Batches are packed and unpacked by hand, so that the broker's kernels are not compared with
themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from tests.simulation.crossing import Shown
from tests.simulation.violation import Violation

from pentalog.kernels import crc32c
from pentalog.model import compression
from pentalog.protocols.fluvio.codec import Reader, Writer

PRODUCE, FETCH, FETCH_OFFSETS, STREAM_FETCH = 0, 1, 1002, 1003
UPDATE_OFFSETS = 1005
UPDATE_CONSUMER_OFFSET, DELETE_CONSUMER_OFFSET, FETCH_CONSUMER_OFFSETS = 1006, 1007, 1008
CREATE, DELETE, UPDATE = 1001, 1002, 1006
SPU_VERSION: Final = 24
SC_VERSION: Final = 19

OTHER, NOT_LEADER, TIMED_OUT, TOO_LARGE, STORAGE, EVICTED = 2, 6, 7, 10, 56, 71
TOPIC_NOT_FOUND, TOPIC_EXISTS, TOPIC_DELETED = 2001, 2002, 2007
PARTITION_NOT_LEADER, SESSION_NOT_FOUND, FLUSH_FAILED, COMPRESSION = 3001, 3002, 3003, 9000

_BATCH: Final = struct.Struct(">qiibIhiqqqhi")
_FRAMING_BYTES: Final = 12
_CHECKED_FROM: Final = 21
_SCHEMA: Final = 0x10
_CODECS: Final = 7


class Error(NamedTuple):
    """An error code; 0 is success."""

    code: int
    text: str = ""


class Written(NamedTuple):
    """One partition of an answer to Produce."""

    partition: int
    error: Error
    base_offset: int


class Part(NamedTuple):
    """Records of one partition, from Fetch or as one frame of a stream."""

    stream_id: int
    error: Error
    end: int
    """Where a reader of this isolation stops."""
    next_offset: int
    records: list[Shown]


def request(key: int, body: bytes, version: int, number: int) -> bytes:
    head = Writer(version).u16(key).i16(version).i32(number).text("sim").out
    return bytes(head + body)


def answer_number(frame: bytes) -> int:
    (number,) = struct.unpack_from(">i", frame)
    return int(number)


def reader_of(frame: bytes, version: int = SPU_VERSION) -> Reader:
    return Reader(memoryview(frame), 4, len(frame), version)


def read_error(reader: Reader) -> Error:
    """An error code with the fields that follow some of them."""
    code = reader.i16()
    if code in (OTHER, FLUSH_FAILED):
        return Error(code, reader.text())
    if code == TIMED_OUT:
        reader.u64(), reader.u8()
    elif code == EVICTED:
        return Error(code, f"{reader.i64()}, the first is {reader.i64()}")
    return Error(code)


# Records


def batch(items: Sequence[tuple[bytes | None, bytes]], timestamp_ms: int, codec: int) -> bytes:
    """Keys and values as a producer sends them."""
    section = Writer(SPU_VERSION).i32(len(items))
    for number, (key, value) in enumerate(items):
        record = Writer(SPU_VERSION).u8(0).varint(0).varint(number)
        if key is None:
            record.u8(0)
        else:
            record.u8(1).varint(len(key)).raw(key)
        record.varint(len(value)).raw(value).varint(0)
        section.varint(len(record.out)).raw(record.out)
    payload = bytes(compression.compress(codec, section.out) if codec else section.out)
    last = len(items) - 1
    fields = (codec, last, timestamp_ms, timestamp_ms, -1, -1, -1)
    head = bytearray(_BATCH.pack(0, _BATCH.size - _FRAMING_BYTES + len(payload), -1, 2, 0, *fields))
    whole = head + payload
    struct.pack_into(">I", whole, 17, crc32c(bytes(whole[_CHECKED_FROM:])))
    return bytes(whole)


def records_of(record_set: bytes, offset: int) -> list[Shown]:
    """Records from an offset on, numbered by their position in a batch as a client does."""
    found: list[Shown] = []
    position = 0
    while position < len(record_set):
        head = _BATCH.unpack_from(record_set, position)
        base, length, checksum, attributes = head[0], head[1], head[4], head[5]
        end = position + _FRAMING_BYTES + length
        if crc32c(record_set[position + _CHECKED_FROM : end]) != checksum:
            raise Violation("damaged", f"a batch at offset {base} is damaged")
        if attributes & _CODECS:
            raise Violation("wrong answer", f"a batch at offset {base} is compressed")
        start = position + _BATCH.size + (4 if attributes & _SCHEMA else 0)
        reader = Reader(memoryview(record_set), start, end, SPU_VERSION)
        for number in range(reader.i32()):
            reader.varint(), reader.u8(), reader.varint(), reader.varint()
            key = reader.option(reader.varbytes)
            value = reader.varbytes()
            reader.varint()
            if base + number >= offset:
                found.append(Shown(value, base + number, True, key))
        reader.finish()
        position = end
    return found


# The SPU


def produce(
    topic: str, batches: Sequence[tuple[int, bytes]], *, durable: bool, timeout_ms: int
) -> bytes:
    """`batches`: the index of a partition and a record set for it."""
    body = Writer(SPU_VERSION).u8(0).i16(-1 if durable else 1).i32(timeout_ms)
    body.u32(1).text(topic)
    body.many(batches, lambda entry: body.u32(entry[0]).bytes_(entry[1]))
    return bytes(body.u32(0).out)


def produced(frame: bytes) -> list[Written]:
    reader = reader_of(frame)

    def entry() -> Written:
        found = Written(reader.u32(), read_error(reader), reader.i64())
        reader.i64(), reader.i64()
        return found

    (topic,) = reader.many(lambda: (reader.text(), reader.many(entry)))
    reader.i32()
    reader.finish()
    return topic[1]


def fetch(
    topic: str, index: int, offset: int, *, committed: bool, bytes_max: int, wait_ms: int
) -> bytes:
    body = Writer(SPU_VERSION).i32(wait_ms).i32(1).i32(bytes_max).u8(int(committed))
    body.u32(1).text(topic).u32(1)
    return bytes(body.u32(index).i32(-1).i64(offset).i64(-1).i32(bytes_max).u32(0).out)


def fetched(frame: bytes, offset: int) -> Part:
    reader = reader_of(frame)
    reader.i32(), reader.i16(), reader.i32()
    reader.u32(), reader.text(), reader.u32()
    return _part(reader, 0, offset)


def stream_fetch(
    topic: str,
    index: int,
    offset: int,
    *,
    committed: bool,
    bytes_max: int,
    consumer_id: str | None,
) -> bytes:
    body = Writer(SPU_VERSION).text(topic).u32(index).i64(offset).i32(bytes_max)
    return bytes(body.u8(int(committed)).u32(0).option_text(consumer_id).out)


def streamed(frame: bytes, offset: int) -> Part:
    reader = reader_of(frame)
    reader.text()
    return _part(reader, reader.u32(), offset)


def _part(reader: Reader, stream_id: int, offset: int) -> Part:
    reader.u32()
    error = read_error(reader)
    end, next_offset = reader.i64(), reader.i64()
    reader.i64(), reader.u8()
    records = records_of(reader.bytes_(), offset)
    reader.finish()
    if records:
        next_offset = (records[-1].offset or 0) + 1
    return Part(stream_id, error, end, max(next_offset, offset), records)


def acknowledge(stream_id: int, offset: int) -> bytes:
    return bytes(Writer(0).u32(1).i64(offset).u32(stream_id).out)


def fetch_offsets(topic: str, indexes: Sequence[int]) -> bytes:
    body = Writer(SPU_VERSION).u32(1).text(topic)
    return bytes(body.many(indexes, body.u32).out)


def offsets(frame: bytes) -> list[tuple[int, int, int, int]]:
    """Index, error code, start and end of each partition."""
    reader = reader_of(frame)

    def entry() -> tuple[int, int, int, int]:
        code, index = reader.i16(), reader.u32()
        return index, code, reader.i64(), reader.i64()

    (topic,) = reader.many(lambda: (reader.text(), reader.many(entry)))
    reader.finish()
    return topic[1]


def update_consumer_offset(stream_id: int, offset: int) -> bytes:
    return bytes(Writer(SPU_VERSION).i64(offset).u32(stream_id).out)


def updated(frame: bytes) -> Error:
    reader = reader_of(frame)
    reader.i64()
    return read_error(reader)


def delete_consumer_offset(consumer_id: str, topic: str, index: int) -> bytes:
    return bytes(Writer(SPU_VERSION).text(topic).u32(index).text(consumer_id).out)


def deleted(frame: bytes) -> Error:
    return read_error(reader_of(frame))


def fetch_consumer_offsets(consumer_id: str) -> bytes:
    return bytes(Writer(SPU_VERSION).boolean(True).u8(0).option_text(consumer_id).out)


def consumer_offsets(frame: bytes) -> tuple[Error, dict[tuple[str, int], int]]:
    """Topic and partition to the last offset that was processed."""
    reader = reader_of(frame)
    error = read_error(reader)

    def entry() -> tuple[tuple[str, int], int]:
        reader.text()
        place = reader.text(), reader.u32()
        offset = reader.i64()
        reader.u64()
        return place, offset

    found = dict(reader.many(entry))
    reader.finish()
    return error, found


# The controller


def _wrapped(inner: Writer, label: str = "Topic") -> bytes:
    return bytes(Writer(SC_VERSION).text(label).bytes_(inner.out).out)


def create_module(name: str, wasm: bytes) -> bytes:
    inner = Writer(SC_VERSION).text(name).boolean(False).u8(0)
    return _wrapped(inner.u8(0).u8(0).u8(0).bytes_(wasm), "SmartModule")


def create_topic(name: str, partitions: int, *, bytes_max: int | None) -> bytes:
    """`bytes_max`: older segments of larger partitions are deleted."""
    inner = Writer(SC_VERSION).text(name).boolean(False).u8(0)
    inner.u8(1).u32(partitions).u32(1).boolean(True).u8(0)
    if bytes_max is None:
        inner.u8(0)
    else:
        inner.u8(1).u8(0).u8(1).u64(bytes_max)
    return _wrapped(inner.u8(4).u8(0).u8(0))


def delete_topic(name: str) -> bytes:
    return _wrapped(Writer(SC_VERSION).text(name).boolean(False))


def add_partitions(name: str, count: int) -> bytes:
    return _wrapped(Writer(SC_VERSION).text(name).u8(0).u32(count))


def status(frame: bytes) -> Error:
    """The answer to a change of a topic."""
    reader = reader_of(frame, SC_VERSION)
    reader.text()
    error = read_error(reader)
    text = reader.option(reader.text)
    reader.finish()
    return error._replace(text=text or error.text)

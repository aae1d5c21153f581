"""Batches and frames for the kernel tests, made by libraries that share no code with ours."""

from __future__ import annotations

import importlib
import io
import struct
import uuid
from datetime import timedelta
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c
from kio.serial import entity_writer
from kio.static.primitive import i16, i32, i32Timedelta

TOPIC_ID = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
VERSIONS = range(3, 14)


def batch(
    count: int = 3,
    *,
    codec: int = 0,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    timestamp: int = 1_000,
    value_bytes: int = 10,
    transactional: bool = False,
) -> bytearray:
    """A batch as aiokafka sends it; record n has time `timestamp` + n."""
    builder = DefaultRecordBatchBuilder(
        2, codec, transactional, producer_id, epoch, sequence, 1 << 24
    )
    for index in range(count):
        key = b"k%d" % index
        headers = [("name", b"text")] if index % 2 else []
        builder.append(index, timestamp + index, key, b"v" * value_bytes, headers)
    return bytearray(builder.build())


def resum(data: bytearray, position: int = 0) -> bytearray:
    """Make the checksum true again after a change."""
    size = 12 + struct.unpack_from(">i", data, position + 8)[0]
    crc = crc32c(bytes(data[position + 21 : position + size]))
    struct.pack_into(">I", data, position + 17, crc)
    return data


def patched(data: bytearray, position: int, form: str, *values: int) -> bytearray:
    """A copy with a field changed and the checksum made true."""
    copy = bytearray(data)
    struct.pack_into(form, copy, position, *values)
    return resum(copy)


def stored(*batches: bytearray, base_offset: int = 0, gap: int = 0) -> bytearray:
    """Batches with their offsets, as they lie in a segment."""
    data = bytearray()
    for one in batches:
        copy = bytearray(one)
        struct.pack_into(">q", copy, 0, base_offset)
        base_offset += struct.unpack_from(">i", copy, 23)[0] + 1 + gap
        data += copy
    return data


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def produce_frame(
    version: int,
    records: bytes | None,
    *,
    correlation: int = 1,
    topic: str = "orders",
    partition: int = 0,
    acks: int = 1,
    client_id: str | None = "test",
    transactional_id: str | None = None,
    partitions: int = 1,
    topics: int = 1,
) -> bytes:
    """A Produce request as kio writes it, with its length."""
    schema: Any = importlib.import_module(f"kio.schema.produce.v{version}.request")
    name = {"topic_id": TOPIC_ID} if version >= 13 else {"name": topic}
    part = schema.PartitionProduceData(index=i32(partition), records=records)
    data = schema.TopicProduceData(**name, partition_data=(part,) * partitions)
    request = schema.ProduceRequest(
        transactional_id=transactional_id,
        acks=i16(acks),
        timeout=i32Timedelta.parse(timedelta(seconds=30)),
        topic_data=(data,) * topics,
    )
    header = schema.ProduceRequest.__header_schema__(
        request_api_key=i16(0),
        request_api_version=i16(version),
        correlation_id=i32(correlation),
        client_id=client_id,
    )
    out = io.BytesIO()
    entity_writer(type(header))(out, header)
    entity_writer(schema.ProduceRequest)(out, request)
    return framed(out.getvalue())

"""RustLog over a plain socket, written from the protocol document and from captured bytes alone.

Nothing of the broker or of its clients is used here, so that they cannot share a mistake with it.
Sections in quotes are those of the protocol document; "packed fields" is what the original server
speaks, of which the document does not tell.
"""

from __future__ import annotations

import base64
import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

DEADLINE_S = 30.0

# "Protocol constants"
FRAME_BYTES_MAX = 10_485_760
LENGTH = struct.Struct(">I")

# Request types of the packed fields; an answer repeats the type of its request.
PRODUCE = 0x01
FETCH = 0x02
OFFSET_COMMIT = 0x03
OFFSET_FETCH = 0x04
CREATE_TOPIC = 0x05
LIST_TOPICS = 0x06
DESCRIBE_TOPIC = 0x07
DESCRIBE_PARTITION = 0x08
METRICS_FETCH = 0x09
ERROR = 0xFE
PING = 0xFF

Json = dict[str, Any]


def frame(payload: bytes) -> bytes:
    """Section "Frame Structure": four bytes of length, big-endian, then the payload."""
    return LENGTH.pack(len(payload)) + payload


def json_payload(message: Json) -> bytes:
    """Section "JSON Payload Format": one object in UTF-8, spaced as in the example frame."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()


def record_text(value: bytes) -> str:
    """Section "Produce Request", record encoding: raw data as Base64."""
    return base64.b64encode(value).decode("ascii")


def record_value(text: str) -> bytes:
    """Section "Fetch Response", payload: Base64-encoded record data."""
    return base64.b64decode(text, validate=True)


class Connection:
    """One connection: frames out, frames in, in order."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self._socket.sendall(data)

    def receive(self) -> bytes:
        """Section "Frame parsing algorithm", the other way round: the payload of the next frame."""
        (length,) = LENGTH.unpack(self._exactly(4))
        if not 1 <= length <= FRAME_BYTES_MAX:
            raise ValueError(f"the broker sent a frame of {length} bytes")
        return self._exactly(length)

    def exchange(self, payload: bytes) -> bytes:
        """One payload there, one back."""
        self.send(frame(payload))
        return self.receive()

    def ask(self, message: Json) -> Json:
        """Section "JSON Payload Format": one object there, one back."""
        return parse(self.exchange(json_payload(message)))

    def is_closed_by_broker(self) -> bool:
        """Section "Connection Error Handling": nothing more comes, and not for want of waiting."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, count: int) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            size = self._socket.recv_into(view)
            if not size:
                raise EOFError(f"the broker hung up {len(view)} bytes early")
            view = view[size:]
        return bytes(data)


def parse(payload: bytes) -> Json:
    """Section "JSON Payload Format": an object, and it has a type."""
    message = json.loads(payload.decode("utf-8"))
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ValueError(f"not an object with a type: {message!r}")
    return message


def produce(topic: str, partition: int, records: Sequence[bytes]) -> Json:
    """Section "Produce Request"."""
    return {
        "type": "Produce",
        "topic": topic,
        "partition": partition,
        "records": [record_text(record) for record in records],
    }


def fetch(
    topic: str, partition: int, offset: int, max_bytes: int = 1_048_576, group_id: str = ""
) -> Json:
    """Section "Fetch Request"."""
    return {
        "type": "Fetch",
        "group_id": group_id,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "max_bytes": max_bytes,
    }


def offset_commit(group: str, topic: str, partition: int, offset: int) -> Json:
    """Section "Offset Commit Request"."""
    return {
        "type": "OffsetCommit",
        "group": group,
        "topic": topic,
        "partition": partition,
        "offset": offset,
    }


def offset_fetch(group: str, topic: str, partition: int) -> Json:
    """Section "Offset Fetch Request"."""
    return {"type": "OffsetFetch", "group": group, "topic": topic, "partition": partition}


def create_topic(topic: str, partition_count: int) -> Json:
    """Section "Create Topic Request"."""
    return {"type": "CreateTopic", "topic": topic, "partition_count": partition_count}


def list_topics() -> Json:
    """Section "List Topics Request/Response"."""
    return {"type": "ListTopics"}


def describe_topic(topic: str) -> Json:
    """Section "Describe Topic Request"."""
    return {"type": "DescribeTopic", "topic": topic}


def describe_partition(topic: str, partition: int) -> Json:
    """Section "Message Type Enumeration", DescribePartition: the fields of the packed form."""
    return {"type": "DescribePartition", "topic": topic, "partition": partition}


def metrics_fetch() -> Json:
    """Section "Message Type Enumeration", MetricsFetch."""
    return {"type": "MetricsFetch"}


def ping() -> Json:
    """Section "Message Type Enumeration", Ping."""
    return {"type": "Ping"}


# Packed fields


def packed_text(text: str) -> bytes:
    """Packed fields: two bytes of length, then UTF-8."""
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded


def packed_produce(topic: str, partition: int, records: Sequence[bytes]) -> bytes:
    """Packed fields, 0x01: topic, partition, count, records each with its length."""
    pieces = [bytes([PRODUCE]), packed_text(topic), struct.pack(">II", partition, len(records))]
    for record in records:
        pieces += [struct.pack(">I", len(record)), record]
    return b"".join(pieces)


def packed_fetch(
    topic: str, partition: int, offset: int, max_bytes: int = 1_048_576, group: str = ""
) -> bytes:
    """Packed fields, 0x02: group, topic, partition, offset, budget."""
    where = struct.pack(">IQI", partition, offset, max_bytes)
    return bytes([FETCH]) + packed_text(group) + packed_text(topic) + where


def packed_offset_commit(group: str, topic: str, partition: int, offset: int) -> bytes:
    """Packed fields, 0x03: group, topic, partition, offset."""
    where = struct.pack(">IQ", partition, offset)
    return bytes([OFFSET_COMMIT]) + packed_text(group) + packed_text(topic) + where


def packed_offset_fetch(group: str, topic: str, partition: int) -> bytes:
    """Packed fields, 0x04: group, topic, partition."""
    where = struct.pack(">I", partition)
    return bytes([OFFSET_FETCH]) + packed_text(group) + packed_text(topic) + where


def packed_create_topic(topic: str, partition_count: int) -> bytes:
    """Packed fields, 0x05: topic, partitions."""
    return bytes([CREATE_TOPIC]) + packed_text(topic) + struct.pack(">I", partition_count)


def packed_describe_topic(topic: str) -> bytes:
    """Packed fields, 0x07: topic."""
    return bytes([DESCRIBE_TOPIC]) + packed_text(topic)


def packed_describe_partition(topic: str, partition: int) -> bytes:
    """Packed fields, 0x08: topic, partition."""
    return bytes([DESCRIBE_PARTITION]) + packed_text(topic) + struct.pack(">I", partition)


@dataclass(frozen=True)
class PackedRecords:
    """A Fetch answer in packed fields."""

    records: list[bytes]
    next_offset: int


def read_packed_records(payload: bytes) -> PackedRecords:
    """Packed fields, answer 0x02: count, records each with its length, next offset, no more."""
    kind, count = struct.unpack_from(">BI", payload)
    if kind != FETCH:
        raise ValueError(f"not an answer to Fetch: {payload[:80].hex()}")
    position = 5
    records = []
    for _ in range(count):
        (length,) = struct.unpack_from(">I", payload, position)
        position += 4
        records.append(payload[position : position + length])
        position += length
    (next_offset,) = struct.unpack_from(">Q", payload, position)
    if position + 8 != len(payload):
        raise ValueError(f"{len(payload) - position - 8} bytes after the next offset")
    return PackedRecords(records, next_offset)


def packed_error(code: int, message: str) -> bytes:
    """Packed fields, 0xFE: code, message."""
    return struct.pack(">BH", ERROR, code) + packed_text(message)

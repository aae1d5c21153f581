"""Kafka requests by hand, where a client library would hide what is asked."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

_BATCH_FRAMING_BYTES = 12


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def frame(api_key: int, version: int, correlation: int, body: bytes) -> bytes:
    payload = struct.pack(">hhih", api_key, version, correlation, -1) + body
    return struct.pack(">i", len(payload)) + payload


def fetch(topic: str, correlation: int) -> bytes:
    """Fetch version 4, for everything from the start of partition 0."""
    name = topic.encode()
    body = struct.pack(">iiiibi", -1, 100, 1, 50 << 20, 0, 1)
    body += struct.pack(">h", len(name)) + name
    body += struct.pack(">iiqi", 1, 0, 0, 50 << 20)
    return frame(1, 4, correlation, body)


def metadata(correlation: int) -> bytes:
    """Metadata version 1, for all topics."""
    return frame(3, 1, correlation, struct.pack(">i", -1))


def answer(peer: socket.socket) -> bytes:
    """The next frame, without its length."""
    (size,) = struct.unpack(">i", _exactly(peer, 4))
    return _exactly(peer, size)


def batch_attributes(address: str, topic: str) -> Iterator[int]:
    """The attributes of each batch that the broker holds in partition 0."""
    with connect(address) as peer:
        peer.sendall(fetch(topic, 1))
        frame = answer(peer)
    # Correlation, throttle time, one topic: its name, one partition.
    position = 12 + 2 + len(topic.encode()) + 4
    # Index, error, high watermark, last stable offset, no aborted transactions.
    position += 4 + 2 + 8 + 8 + 4
    (size,) = struct.unpack_from(">i", frame, position)
    position += 4
    end = position + size
    while position < end:
        (length,) = struct.unpack_from(">i", frame, position + 8)
        (attributes,) = struct.unpack_from(">h", frame, position + 21)
        yield attributes
        position += _BATCH_FRAMING_BYTES + length


def _exactly(peer: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = peer.recv(size - len(parts))
        assert part, f"hung up after {len(parts)} of {size} bytes"
        parts += part
    return bytes(parts)

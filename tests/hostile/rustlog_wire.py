"""A RustLog client on a socket, and requests of both dialects, for attacks and walks."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any


class RustLogClient:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def __enter__(self) -> RustLogClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, frame: bytes) -> bytes:
        """The payload of the answer."""
        self.socket.sendall(frame)
        return self.receive()

    def receive(self) -> bytes:
        (size,) = struct.unpack(">I", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        got = bytearray()
        while len(got) < count:
            piece = self.socket.recv(count - len(got))
            if not piece:
                raise EOFError(f"the broker hung up after {len(got)} of {count} bytes")
            got += piece
        return bytes(got)


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def text(**fields: Any) -> bytes:
    """A frame in JSON."""
    return framed(json.dumps(fields, separators=(",", ":")).encode())


def string(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def packed(kind: int, *names: str, tail: bytes = b"") -> bytes:
    """A binary frame: its type, names and what follows them."""
    return framed(bytes([kind]) + b"".join(map(string, names)) + tail)


def numbers(*values: int, wide: int = -1) -> bytes:
    """u32 each; the one at the position `wide` is a u64."""
    return b"".join(
        struct.pack(">Q" if place == wide else ">I", value) for place, value in enumerate(values)
    )


def produce(topic: str, partition: int, records: list[bytes]) -> bytes:
    body = b"".join(struct.pack(">I", len(record)) + record for record in records)
    return packed(0x01, topic, tail=numbers(partition, len(records)) + body)


PING = framed(b"\xff")

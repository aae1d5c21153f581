"""RustLog spoken over a bare socket, written from the protocol's document and captures alone.

Shares no code with the broker or with the client that ships with it, so that those two cannot
agree on the same mistake.
"""

from __future__ import annotations

import base64
import json
import socket
from typing import Any


class RawRustLog:
    """One connection; frames in, frames out."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)

    def __enter__(self) -> RawRustLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send(self, payload: bytes) -> None:
        self.write(len(payload).to_bytes(4, "big") + payload)

    def frame(self) -> bytes:
        """The next frame's payload; empty if the broker hung up instead."""
        head = self._exactly(4)
        return self._exactly(int.from_bytes(head, "big")) if head else b""

    def json(self, **fields: Any) -> dict[str, Any]:
        """Ask in the document's dialect."""
        self.send(json.dumps(fields).encode("utf-8"))
        answer = json.loads(self.frame().decode("utf-8"))
        assert isinstance(answer, dict)
        return answer

    def packed(self, kind: int, *fields: str | bytes | tuple[int, int]) -> bytes:
        """Ask in the original's dialect: texts, bytes, and numbers as (value, bytes)."""
        payload = bytes([kind])
        for field in fields:
            if isinstance(field, str):
                data = field.encode("utf-8")
                payload += len(data).to_bytes(2, "big") + data
            elif isinstance(field, bytes):
                payload += len(field).to_bytes(4, "big") + field
            else:
                value, size = field
                payload += value.to_bytes(size, "big")
        self.send(payload)
        return self.frame()

    def _exactly(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            piece = self._socket.recv(size - len(got))
            if not piece:
                assert not got, "hung up in the middle of a frame"
                return b""
            got += piece
        return bytes(got)


def encoded(*values: bytes) -> list[str]:
    return [base64.b64encode(value).decode("ascii") for value in values]


def produce(peer: RawRustLog, topic: str, partition: int, *values: bytes) -> tuple[int, int]:
    """Base offset and count, in the original's dialect."""
    answer = peer.packed(1, topic, (partition, 4), (len(values), 4), *values)
    assert answer[0] == 1, answer
    assert len(answer) == 13
    return int.from_bytes(answer[1:9], "big"), int.from_bytes(answer[9:13], "big")


def fetch(
    peer: RawRustLog,
    topic: str,
    partition: int,
    offset: int,
    *,
    bytes_max: int = 1 << 20,
    group: str = "",
) -> tuple[list[bytes], int]:
    """Values and next offset, in the original's dialect."""
    answer = peer.packed(2, group, topic, (partition, 4), (offset, 8), (bytes_max, 4))
    assert answer[0] == 2, answer
    count = int.from_bytes(answer[1:5], "big")
    values, position = [], 5
    for _ in range(count):
        size = int.from_bytes(answer[position : position + 4], "big")
        values.append(answer[position + 4 : position + 4 + size])
        position += 4 + size
    assert len(answer) == position + 8
    return values, int.from_bytes(answer[position:], "big")


def read_all(peer: RawRustLog, topic: str, partition: int) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while True:
        values, next_offset = fetch(peer, topic, partition, offset)
        if not values:
            return found
        found += values
        offset = next_offset

"""A BlipMQ client on a socket, and its frames, for attacks and walks."""

from __future__ import annotations

import socket
import struct

from pentalog.protocols.blipmq.frames import FrameType


class BlipmqClient:
    """One connection, logged in with a key."""

    def __init__(self, connection: socket.socket, key: str = "dev-key") -> None:
        self.socket = connection
        if key:
            assert self.ask(hello())[0] == FrameType.ACK
            assert self.ask(auth(key))[0] == FrameType.ACK

    def __enter__(self) -> BlipmqClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, frames: bytes) -> tuple[int, int, bytes]:
        self.socket.sendall(frames)
        return self.receive()

    def receive(self) -> tuple[int, int, bytes]:
        """Type, correlation id and payload of the next frame."""
        size, kind, correlation = struct.unpack(">IBQ", self._exactly(13))
        return kind, correlation, self._exactly(size - 9)

    def fence(self, frames: bytes = b"") -> list[tuple[int, int, bytes]]:
        """Send frames and a PING; returns what is answered before the PONG."""
        self.socket.sendall(frames + frame(FrameType.PING, (1 << 64) - 1))
        found: list[tuple[int, int, bytes]] = []
        while (answer := self.receive())[0] != FrameType.PONG:
            found.append(answer)
        return found

    def subscribe(self, topic: str, qos: int = 1) -> int:
        kind, _, payload = self.ask(subscribe(topic, qos))
        assert kind == FrameType.ACK, payload
        return int.from_bytes(payload, "big")

    def _exactly(self, count: int) -> bytes:
        got = bytearray()
        while len(got) < count:
            piece = self.socket.recv(count - len(got))
            if not piece:
                raise EOFError(f"the broker hung up after {len(got)} of {count} bytes")
            got += piece
        return bytes(got)


def frame(kind: int, correlation: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBQ", 9 + len(payload), kind, correlation) + payload


def hello() -> bytes:
    return frame(FrameType.HELLO, 1, b"\0\1")


def auth(key: str) -> bytes:
    return frame(FrameType.AUTH, 2, _string(key.encode()))


def publish(topic: str, message: bytes, qos: int = 1, correlation: int = 4) -> bytes:
    return frame(FrameType.PUBLISH, correlation, bytes([qos]) + _string(topic.encode()) + message)


def subscribe(topic: str, qos: int = 1) -> bytes:
    return frame(FrameType.SUBSCRIBE, 3, _string(topic.encode()) + bytes([qos]))


def poll(subscription: int, correlation: int = 9) -> bytes:
    return frame(FrameType.POLL, correlation, subscription.to_bytes(8, "big"))


def ack(subscription: int, tag: int) -> bytes:
    return frame(FrameType.ACK, tag, subscription.to_bytes(8, "big"))


def _string(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data

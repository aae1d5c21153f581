"""A client of the BlipMQ protocol over a plain socket, written from the protocol's document alone.

It shares nothing with the broker or with the client we ship, so none of them can agree with it on
a mistake.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from types import TracebackType

HELLO, AUTH, PUBLISH, SUBSCRIBE, ACK, NACK, PING, PONG, POLL = 1, 2, 3, 4, 5, 6, 7, 8, 9


@dataclass
class Frame:
    type: int
    correlation_id: int
    payload: bytes

    @property
    def subscription_id(self) -> int:
        assert self.type == ACK
        assert len(self.payload) == 8
        return int.from_bytes(self.payload, "big")

    @property
    def error(self) -> tuple[int, str]:
        assert self.type == NACK
        code = int.from_bytes(self.payload[0:2], "big")
        length = int.from_bytes(self.payload[2:4], "big")
        assert len(self.payload) == 4 + length
        return code, self.payload[4:].decode()

    @property
    def message(self) -> tuple[int, str, bytes]:
        """Quality, topic, message."""
        assert self.type == PUBLISH
        length = int.from_bytes(self.payload[1:3], "big")
        return self.payload[0], self.payload[3 : 3 + length].decode(), self.payload[3 + length :]


def frame(type_: int, correlation_id: int, payload: bytes = b"") -> bytes:
    total = 1 + 8 + len(payload)
    return total.to_bytes(4, "big") + bytes([type_]) + correlation_id.to_bytes(8, "big") + payload


def u16(number: int) -> bytes:
    return number.to_bytes(2, "big")


def u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


def publish_frame(correlation_id: int, qos: int, topic: str, message: bytes) -> bytes:
    name = topic.encode()
    return frame(PUBLISH, correlation_id, bytes([qos]) + u16(len(name)) + name + message)


class RawClient:
    """One connection."""

    def __init__(self, port: int, host: str = "127.0.0.1", timeout_s: float = 20) -> None:
        self.socket = socket.create_connection((host, port), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._pings = 1 << 40

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def receive(self) -> Frame:
        while len(self._received) < 4 or len(self._received) < 4 + self._length():
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError("the server closed the connection")
            self._received += data
        length = self._length()
        body = self._received[4 : 4 + length]
        self._received = self._received[4 + length :]
        return Frame(body[0], int.from_bytes(body[1:9], "big"), body[9:])

    def _length(self) -> int:
        return int.from_bytes(self._received[0:4], "big")

    def shake_hands(self, key: str = "dev-key") -> RawClient:
        self.send(frame(HELLO, 1, u16(1)))
        answer = self.receive()
        assert (answer.type, answer.correlation_id, answer.subscription_id) == (ACK, 1, 0)
        self.send(frame(AUTH, 2, u16(len(key)) + key.encode()))
        answer = self.receive()
        assert (answer.type, answer.correlation_id, answer.subscription_id) == (ACK, 2, 0)
        return self

    def subscribe(self, topic: str, qos: int) -> int:
        name = topic.encode()
        self.send(frame(SUBSCRIBE, 3, u16(len(name)) + name + bytes([qos])))
        answer = self.receive()
        assert answer.correlation_id == 3
        assert answer.subscription_id != 0
        return answer.subscription_id

    def fence(self, *frames: bytes) -> list[Frame]:
        """Send frames and a PING; everything that comes before its PONG."""
        self._pings += 1
        self.send(*frames, frame(PING, self._pings))
        answers: list[Frame] = []
        while True:
            answer = self.receive()
            if answer.type == PONG and answer.correlation_id == self._pings:
                assert answer.payload == b""
                return answers
            answers.append(answer)

    def poll(self, subscription_id: int, count: int = 1) -> list[Frame]:
        return self.fence(*[frame(POLL, 5000 + i, u64(subscription_id)) for i in range(count)])

    def acknowledge(self, subscription_id: int, *tags: int) -> list[Frame]:
        return self.fence(*[frame(ACK, tag, u64(subscription_id)) for tag in tags])

"""A broker with its Kafka and Cursus doors open, for tests with real Cursus clients."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import brokers


@dataclass(frozen=True, slots=True)
class Subject:
    kafka: str
    cursus: str
    broker: brokers.Broker
    doors: Mapping[str, str]
    """Addresses of further doors, by name."""

    def connect(self) -> Wire:
        return Wire(self.cursus)


@contextlib.contextmanager
def running(directory: Path, *, doors: Sequence[str] = (), **settings: str) -> Iterator[Subject]:
    started = brokers.start_pentalog(
        directory,
        settings={
            "cursus_session_timeout_ms": "6000",
            **settings,
        },
        arguments=brokers.open_doors("cursus", *doors),
    )
    with brokers.stopping(started):
        yield Subject(started.address, started.doors["cursus"], started, started.doors)
        assert started.process.poll() is None, f"the broker ended; see {started.log}"


class Wire:
    """One connection, frame by frame."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, body: bytes | str) -> None:
        body = body.encode() if isinstance(body, str) else body
        self.socket.sendall(struct.pack(">I", len(body)) + body)

    def receive(self) -> bytes:
        (size,) = struct.unpack(">I", self._exactly(4))
        return self._exactly(size)

    def ask(self, body: bytes | str) -> bytes:
        self.send(body)
        return self.receive()

    def text(self, command: str) -> str:
        return self.ask(b"\0\0" + command.encode()).decode()

    def publish(self, body: bytes) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.ask(body))
        return found

    def _exactly(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            piece = self.socket.recv(min(1 << 20, size - len(got)))
            if not piece:
                raise EOFError(f"the broker hung up after {len(got)} of {size} bytes")
            got += piece
        return bytes(got)

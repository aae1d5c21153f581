"""A RustLog connection to a whole broker in a directory, on one thread, fed by hand."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "kafka"))

from disk_broker import DiskBroker
from kafka_world import Line

from pentalog.protocols.rustlog.session import RustLogSession
from pentalog.session import Address, Context

FRAME_BYTES_MAX = 10 << 20


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def text(**fields: Any) -> bytes:
    """A frame in JSON."""
    return framed(json.dumps(fields, separators=(",", ":")).encode())


def string(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def produce(topic: str, partition: int, *records: bytes) -> bytes:
    parts = [b"\x01", string(topic), struct.pack(">II", partition, len(records))]
    parts += [struct.pack(">I", len(record)) + record for record in records]
    return framed(b"".join(parts))


def fetch(
    topic: str, partition: int, offset: int, bytes_max: int = 1 << 20, group: str = ""
) -> bytes:
    tail = struct.pack(">IQI", partition, offset, bytes_max)
    return framed(b"\x02" + string(group) + string(topic) + tail)


def commit(group: str, topic: str, partition: int, offset: int) -> bytes:
    tail = struct.pack(">IQ", partition, offset)
    return framed(b"\x03" + string(group) + string(topic) + tail)


def committed(group: str, topic: str, partition: int) -> bytes:
    return framed(b"\x04" + string(group) + string(topic) + struct.pack(">I", partition))


def create(topic: str, partitions: int) -> bytes:
    return framed(b"\x05" + string(topic) + struct.pack(">I", partitions))


def describe(topic: str, partition: int | None = None) -> bytes:
    if partition is None:
        return framed(b"\x07" + string(topic))
    return framed(b"\x08" + string(topic) + struct.pack(">I", partition))


PING = framed(b"\xff")
LIST = framed(b"\x06")
METRICS = framed(b"\x09")


def fetched(reply: bytes) -> tuple[list[bytes], int]:
    """Records and next offset of a binary Fetch reply."""
    assert reply[0] == 2, reply
    (count,) = struct.unpack_from(">I", reply, 1)
    found, position = [], 5
    for _ in range(count):
        (size,) = struct.unpack_from(">I", reply, position)
        found.append(reply[position + 4 : position + 4 + size])
        position += 4 + size
    (next_offset,) = struct.unpack_from(">Q", reply, position)
    assert position + 8 == len(reply)
    return found, next_offset


def failure(reply: bytes) -> tuple[int, str]:
    """Code and text of a binary Error."""
    assert reply[0] == 0xFE, reply
    code, size = struct.unpack_from(">HH", reply, 1)
    assert len(reply) == 5 + size
    return code, reply[5:].decode()


class RustLogWorld:
    def __init__(self, directory: Path, **settings: Any) -> None:
        self.disk = DiskBroker(directory, **settings)

    def connect(self) -> RustLogConnection:
        return RustLogConnection(self.disk)

    def close(self) -> None:
        self.disk.close()


class RustLogConnection:
    """A session, with the receive buffer a server would keep for it."""

    def __init__(self, disk: DiskBroker) -> None:
        self.disk = disk
        self.line = Line()
        self.left = b""
        context = Context(
            broker=disk.broker,
            runtime=disk.runtime,
            config=disk.config,
            metrics=disk.metrics,
            peer="test",
            listener="rustlog",
            advertised=lambda endpoint: Address("host.example", 9192),
        )
        self.session = RustLogSession(context, self.line)

    def feed(self, data: bytes) -> None:
        buffer = bytearray(self.left + data)
        with self.disk.seeded():
            used = self.session.receive(memoryview(buffer))
        assert 0 <= used <= len(buffer)
        self.left = bytes(buffer[used:])
        # What was sent must not depend on what the buffer holds next.
        buffer[:] = b"\xaa" * len(buffer)

    def run(self) -> None:
        """Let everything happen that is due, also the end of a pause."""
        while True:
            with self.disk.seeded():
                self.disk.runtime.run()
            if not self.line.muted:
                return
            self.line.muted = False
            self.feed(b"")

    def asks(self, data: bytes) -> list[bytes]:
        """The answers to these frames, given whatever waits they need."""
        before = len(self.line.frames())
        self.feed(data)
        self.run()
        assert self.line.waiting == 0
        return self.line.frames()[before:]

    def ask(self, data: bytes) -> bytes:
        (answer,) = self.asks(data)
        return answer

    def say(self, **fields: Any) -> Any:
        """Ask in JSON, and read the answer."""
        return json.loads(self.ask(text(**fields)))

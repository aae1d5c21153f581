"""What the Cursus door costs per message: batches in, CONSUME and STREAM out.

`python benchmarks/cursus_door.py [--quick]` starts a broker of its own and drives it over a socket
with batches of 1,000 messages of 100 bytes.  CPU is that of the broker's process, all threads; it
does not depend on how busy the machine is otherwise, times do.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import brokers

MESSAGES = 1000
PAYLOAD = b"x" * 100
FEW = 10
IN_FLIGHT = 5
"""Batches on their way, as the released clients have."""


@dataclass(frozen=True, slots=True)
class Measured:
    row: str
    messages: int
    seconds: float
    cpu_us: float
    """CPU of the broker per message."""

    def line(self) -> str:
        rate = self.messages / self.seconds
        return f"{self.row:24} {rate:12,.0f} messages/s {self.cpu_us:8.3f} us CPU per message"


class Wire:
    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(32 << 20)
        self._view = memoryview(self._buffer)

    def close(self) -> None:
        self._socket.close()

    def send(self, body: bytes) -> None:
        self._socket.sendall(struct.pack(">I", len(body)) + body)

    def receive(self) -> memoryview:
        """The next frame; valid until the next call."""
        (size,) = struct.unpack(">I", self._exactly(4))
        return self._exactly(size)

    def ask(self, body: bytes) -> memoryview:
        self.send(body)
        return self.receive()

    def _exactly(self, size: int) -> memoryview:
        got = 0
        while got < size:
            count = self._socket.recv_into(self._view[got:size])
            if not count:
                raise EOFError("the broker hung up")
            got += count
        return self._view[:size]


def batch(topic: bytes, acks: bytes, start: int, *, idempotent: bool, document: bool) -> bytes:
    producer = b"bench-producer"
    head = b"\xba\x7c" + struct.pack(">H", len(topic)) + topic
    if document:
        head += b"\x00\x010" + struct.pack(">H", len(acks)) + acks
    else:
        head += struct.pack(">iB", 0, len(acks)) + acks
    head += struct.pack(">BQQi", idempotent, start, start + MESSAGES - 1, MESSAGES)
    fixed = struct.pack(">H", len(producer)) + producer + b"\x00\x00"
    rest = struct.pack(">qI", 1_794_768_243, len(PAYLOAD)) + PAYLOAD + bytes(16)
    return head + b"".join(
        struct.pack(">QQ", 0, seq) + fixed + rest for seq in range(start, start + MESSAGES)
    )


def measure(row: str, broker: brokers.Broker, messages: int, run: Callable[[], None]) -> Measured:
    cpu, start = broker.cpu_s, time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return Measured(row, messages, seconds, (broker.cpu_s - cpu) * 1e6 / messages)


def produce(wire: Wire, batches: list[bytes]) -> None:
    in_flight = 0
    for body in batches:
        wire.send(body)
        in_flight += 1
        if in_flight == IN_FLIGHT:
            _check(wire)
            in_flight -= 1
    for _ in range(in_flight):
        _check(wire)


def _check(wire: Wire) -> None:
    answer = json.loads(bytes(wire.receive()))
    if answer["status"] != "OK":
        raise SystemExit(f"refused: {answer['error']}")


def count_at(body: memoryview, head_bytes: int) -> int:
    count: int = struct.unpack_from(">i", body, head_bytes + 16)[0]
    return count


def consume(wire: Wire, topic: str, messages: int, more: str = "") -> None:
    head_bytes = 11 + len(topic)
    offset = 0
    while offset < messages:
        command = f"CONSUME topic={topic} partition=0 offset={offset} member=m{more}"
        offset += count_at(wire.ask(command.encode()), head_bytes)


def consume_few(wire: Wire, topic: str, messages: int) -> None:
    consume(wire, topic, messages, f" batch={FEW}")


def stream(wire: Wire, topic: str, messages: int) -> None:
    head_bytes = 11 + len(topic)
    wire.send(f"STREAM topic={topic} partition=0 group=bench offset=0".encode())
    got = 0
    while got < messages:
        body = wire.receive()
        if body:
            got += count_at(body, head_bytes)


def rows(address: str, broker: brokers.Broker, batches: int) -> list[Measured]:
    found: list[Measured] = []
    wire = Wire(address)
    total = batches * MESSAGES
    for row, acks, idempotent, document in (
        ("warm", b"1", False, False),
        ("produce acks=1", b"1", False, False),
        ("produce acks=-1", b"-1", False, False),
        ("produce acks=0", b"0", False, False),
        ("produce idempotent", b"-1", True, False),
        ("produce document", b"1", False, True),
    ):
        topic = row.replace(" ", "-").replace("=", "")
        wire.ask(f"CREATE topic={topic} partitions=1".encode())
        bodies = [
            batch(
                topic.encode(), acks, 1 + number * MESSAGES, idempotent=idempotent,
                document=document,
            )
            for number in range(batches)
        ]  # fmt: skip
        found.append(measure(row, broker, total, partial(produce, wire, bodies)))
    time.sleep(0.5)
    topic = "produce-acks1"
    for row, read, share in (
        ("consume", consume, 1),
        (f"consume {FEW} at a time", consume_few, FEW),
        ("stream", stream, 1),
    ):
        reader = Wire(address)
        wanted = total // share
        found.append(measure(row, broker, wanted, partial(read, reader, topic, wanted)))
        reader.close()
    wire.close()
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="does it run? Not for quoting")
    asked = parser.parse_args()
    batches = 50 if asked.quick else 500
    with tempfile.TemporaryDirectory(prefix="pentalog-bench-") as directory:
        started = brokers.start_pentalog(Path(directory), arguments=brokers.open_doors("cursus"))
        with brokers.stopping(started):
            for measured in rows(started.doors["cursus"], started, batches):
                print(measured.line(), flush=True)


if __name__ == "__main__":
    main()

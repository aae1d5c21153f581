"""The Fluvio door under load, beside Kafka's: what a record costs the broker in CPU time.

    python benchmarks/fluvio_door.py [--quick]

Batches of 1,000 records of 100 bytes, one request each, several under way.  CPU time is that of
the whole broker process, threads that sync included, so it can be quoted from a busy machine;
rates cannot.
"""

from __future__ import annotations

import argparse
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from brokers import Broker, open_doors, start_pentalog, stopping
from pentalog import kernels
from pentalog.model import batch
from pentalog.model.types import Record

RECORDS = 1_000
VALUE_BYTES = 100
WINDOW = 4
AIM = "0.5 us CPU"
_FETCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Measured:
    row: str
    records: int
    seconds: float
    cpu_s: float
    aim: str = ""


class Wire:
    """A connection that sends frames and counts answers."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    def send(self, frame: bytes) -> None:
        self._socket.sendall(struct.pack(">I", len(frame)) + frame)

    def receive(self) -> bytes:
        size = struct.unpack(">I", self._exactly(4))[0]
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            part = self._socket.recv(1 << 20)
            if not part:
                raise ConnectionResetError("the broker closed the connection")
            self._buffer += part
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        return found

    def close(self) -> None:
        self._socket.close()


def log_batch() -> bytearray:
    now_ms = time.time_ns() // 1_000_000
    records = [Record(b"%04d" % n * (VALUE_BYTES // 4), None) for n in range(RECORDS)]
    return batch.build(records, timestamp_ms=now_ms)


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def fluvio_head(key: int, version: int, number: int) -> bytes:
    return struct.pack(">Hhi", key, version, number) + text("bench")


def produce_frames(kind: str) -> Callable[[int], bytes]:
    built = log_batch()
    if kind == "kafka":
        # Produce 9 has flexible fields; 3 has none: acks 1, one topic, one partition.
        body = struct.pack(">hhi", -1, 1, 30_000) + struct.pack(">i", 1) + text("bench")
        body += struct.pack(">iii", 1, 0, len(built)) + built
        return lambda number: struct.pack(">hhi", 0, 3, number) + text("bench") + body
    sent, _ = kernels.log_to_fluvio(built, 0, len(built), 0)
    body = b"\0" + struct.pack(">hii", 1, 30_000, 1) + text("bench")
    body += struct.pack(">iii", 1, 0, len(sent)) + sent + bytes(4)
    return lambda number: fluvio_head(0, 24, number) + body


def produce(broker: Broker, kind: str, port: int, batches: int) -> Measured:
    frame = produce_frames(kind)
    wire = Wire(port)
    for number in range(20):
        wire.send(frame(number))
        wire.receive()
    cpu_s, start_s = broker.cpu_s, time.perf_counter()
    for number in range(batches):
        if number >= WINDOW:
            wire.receive()
        wire.send(frame(number))
    for _ in range(min(WINDOW, batches)):
        wire.receive()
    seconds = time.perf_counter() - start_s
    wire.close()
    used = broker.cpu_s - cpu_s
    aim = AIM if kind == "fluvio" else ""
    return Measured(f"{kind} produce", batches * RECORDS, seconds, used, aim)


def consume_fluvio(broker: Broker, port: int, end: int) -> Measured:
    """One stream, acknowledged frame by frame."""
    wire = Wire(port)
    cpu_s, start_s = broker.cpu_s, time.perf_counter()
    body = text("bench") + struct.pack(">IqiB", 0, 0, _FETCH_BYTES, 0) + bytes(4) + b"\0"
    wire.send(fluvio_head(1003, 24, 1) + body)
    offset = 0
    while offset < end:
        answer = wire.receive()
        if struct.unpack_from(">i", answer)[0] != 1:
            continue
        position = 4 + 2 + len("bench") + 4 + 4 + 2 + 8 + 8 + 8 + 1
        (size,) = struct.unpack_from(">i", answer, position)
        position += 4
        stop = position + size
        while position < stop:
            base, length = struct.unpack_from(">qi", answer, position)
            (delta,) = struct.unpack_from(">i", answer, position + 23)
            offset = base + delta + 1
            position += length + 12
        wire.send(fluvio_head(1005, 0, 2) + struct.pack(">IqI", 1, offset, 1))
    seconds = time.perf_counter() - start_s
    used = broker.cpu_s - cpu_s
    wire.close()
    return Measured("fluvio stream", end, seconds, used, AIM)


def consume_kafka(broker: Broker, port: int, end: int) -> Measured:
    """Fetch after fetch."""
    wire = Wire(port)
    cpu_s, start_s = broker.cpu_s, time.perf_counter()
    offset = 0
    while offset < end:
        body = struct.pack(">iiiiBi", -1, 100, 1, _FETCH_BYTES, 0, 1) + text("bench")
        body += struct.pack(">iiqi", 1, 0, offset, _FETCH_BYTES)
        wire.send(struct.pack(">hhi", 1, 4, 1) + text("bench") + body)
        answer = wire.receive()
        position = 4 + 4 + 4 + 2 + len("bench") + 4 + 4 + 2 + 8 + 8 + 4
        (size,) = struct.unpack_from(">i", answer, position)
        position += 4
        stop = position + size
        while stop - position >= 61:
            base, length = struct.unpack_from(">qi", answer, position)
            if length + 12 > stop - position:
                break
            offset = base + struct.unpack_from(">i", answer, position + 23)[0] + 1
            position += length + 12
    seconds = time.perf_counter() - start_s
    used = broker.cpu_s - cpu_s
    wire.close()
    return Measured("kafka fetch", end, seconds, used)


def create_topic(port: int) -> None:
    spec = b"\1" + struct.pack(">IIB", 1, 1, 1) + b"\0\0\4\0\0"
    inner = text("bench") + b"\0\0" + spec
    wire = Wire(port)
    envelope = text("Topic") + struct.pack(">I", len(inner)) + inner
    wire.send(fluvio_head(1001, 19, 1) + envelope)
    wire.receive()
    wire.close()


def measure(batches: int) -> list[Measured]:
    with tempfile.TemporaryDirectory(prefix="pentalog-bench-") as directory:
        listen = open_doors("fluvio-sc", "fluvio-spu")
        with stopping(start_pentalog(Path(directory), arguments=listen)) as broker:
            ports = (broker.doors[name] for name in ("fluvio-sc", "fluvio-spu", "kafka"))
            sc, spu, kafka = (int(address.rpartition(":")[2]) for address in ports)
            create_topic(sc)
            found = [
                produce(broker, "fluvio", spu, batches),
                produce(broker, "kafka", kafka, batches),
            ]
            end = (2 * batches + 40) * RECORDS
            found.append(consume_fluvio(broker, spu, end))
            found.append(consume_kafka(broker, kafka, end))
            return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the records")
    asked = parser.parse_args()
    table = Table("row", "records/s", "us CPU per record", "aim")
    for result in measure(200 if asked.quick else 2_000):
        rate = result.records / result.seconds
        cpu_us = result.cpu_s / result.records * 1e6
        table.add_row(result.row, f"{rate:,.0f}", f"{cpu_us:.3f}", result.aim)
    Console().print(table)


if __name__ == "__main__":
    main()

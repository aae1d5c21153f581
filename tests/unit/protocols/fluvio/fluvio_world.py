"""A whole broker on one thread with manual time, and connections to its two Fluvio ports."""

from __future__ import annotations

import dataclasses
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "kafka"))

from disk_broker import DiskBroker

from pentalog import kernels
from pentalog.broker.smart_modules import LocalSmartModules
from pentalog.model import batch
from pentalog.model.later import Later
from pentalog.model.types import FilePiece, Piece, Record
from pentalog.protocols.fluvio.codec import Reader, Writer
from pentalog.protocols.fluvio.sc import ScSession
from pentalog.protocols.fluvio.spu import SpuSession
from pentalog.session import Address, Context

SPU_ADDRESS = Address("localhost", 19310)
BATCH_HEADER_BYTES = 57


class KeptPlace:
    def __init__(self, line: Line) -> None:
        self._line: Line | None = line

    def fill(self, *pieces: Piece) -> None:
        line, self._line = self._line, None
        assert line is not None, "filled twice"
        line.places -= 1
        line.put(pieces)


class Line:
    """What a socket would see of answers that leave in any order."""

    def __init__(self) -> None:
        self.full = False
        self.hung_up = False
        self.places = 0
        self.let_go: Callable[[], None] = lambda: None
        """Called when a hold has ended."""
        self.sent = bytearray()
        self._waiting: list[Callable[[], None]] = []

    def send(self, *pieces: Piece) -> None:
        self.put(pieces)

    def put(self, pieces: Sequence[Piece]) -> None:
        if self.hung_up:
            return
        for piece in pieces:
            assert not isinstance(piece, FilePiece)
            self.sent += piece

    def place(self) -> KeptPlace:
        self.places += 1
        return KeptPlace(self)

    def reserve(self, size: int) -> Later[Callable[[], None]]:
        return Later.now(lambda: None)

    def hang_up(self) -> None:
        self.hung_up = True

    def when_room(self, run: Callable[[], None]) -> None:
        self._waiting.append(run)

    def mute(self, delay_ms: int) -> None:
        raise AssertionError("Fluvio clients are not muted")

    def hold(self) -> Callable[[], None]:
        assert not self.full, "held already"
        self.full = True
        return self._let_go

    def _let_go(self) -> None:
        self.full = False
        self.let_go()

    def make_room(self) -> None:
        self.full = False
        waiting, self._waiting = self._waiting, []
        for run in waiting:
            run()


class FluvioBroker(DiskBroker):
    """Restarted by making another one in the same directory after `close`."""

    dates_commits = True

    def __init__(self, directory: Path, **settings: Any) -> None:
        directory.mkdir(exist_ok=True)
        super().__init__(directory, **settings)
        self.smart_modules = LocalSmartModules(self.state, self.runtime, self.config)
        self.smart_modules.open()
        self.broker = dataclasses.replace(self.broker, smart_modules=self.smart_modules)

    def context(self, listener: str) -> Context:
        return Context(
            broker=self.broker,
            runtime=self.runtime,
            config=self.config,
            metrics=self.metrics,
            peer="test",
            listener=listener,
            advertised=lambda endpoint: SPU_ADDRESS,
        )

    def sc(self) -> Client:
        return Client(self, ScSession, 19)

    def spu(self, version: int = 24) -> Client:
        return Client(self, SpuSession, version)


class Client:
    """One connection: frames in, frames out."""

    def __init__(self, broker: FluvioBroker, kind: Any, version: int) -> None:
        self.broker = broker
        self.version = version
        self.line = Line()
        self.line.let_go = lambda: broker.runtime.soon(lambda: self.feed(b""))
        self.session = kind(broker.context(kind.__name__), self.line)
        self._unread = 0
        self._left = b""
        self._correlation_id = 0

    def feed(self, data: bytes) -> None:
        buffer = bytearray(self._left + data)
        with self.broker.seeded():
            used = self.session.receive(memoryview(buffer))
        assert 0 <= used <= len(buffer)
        self._left = bytes(buffer[used:])
        # What was sent must not depend on what the buffer holds next.
        buffer[:] = b"\xaa" * len(buffer)

    def run(self) -> None:
        with self.broker.seeded():
            self.broker.runtime.run()

    def frames(self) -> list[tuple[int, bytes]]:
        """(correlation id, body) of every answer since the last look."""
        found = []
        sent = self.line.sent
        while self._unread < len(sent):
            (size,) = struct.unpack_from(">I", sent, self._unread)
            frame = bytes(sent[self._unread + 4 : self._unread + 4 + size])
            assert len(frame) == size, "a frame is cut off"
            found.append((struct.unpack_from(">i", frame)[0], frame[4:]))
            self._unread += 4 + size
        return found

    def request(self, key: int, body: bytes = b"", version: int | None = None) -> int:
        """Send one; returns its correlation id."""
        self._correlation_id += 1
        self.feed(
            request(key, body, self.version if version is None else version, self._correlation_id)
        )
        return self._correlation_id

    def ask(self, key: int, body: bytes = b"", version: int | None = None) -> Reader:
        """The one answer to a request, given whatever waits it needs."""
        correlation_id = self.request(key, body, version)
        self.run()
        (answer,) = [body for number, body in self.frames() if number == correlation_id]
        chosen = self.version if version is None else version
        return Reader(memoryview(answer), 0, len(answer), chosen)

    def pushed(self) -> list[tuple[int, Reader]]:
        self.run()
        return [
            (number, Reader(memoryview(body), 0, len(body), self.version))
            for number, body in self.frames()
        ]


def request(key: int, body: bytes, version: int, correlation_id: int, client: str = "t") -> bytes:
    head = Writer(version).u16(key).i16(version).i32(correlation_id).text(client).out
    return struct.pack(">I", len(head) + len(body)) + head + body


def wrapped(label: str, inner: bytes) -> bytes:
    """An object of the controller in its envelope."""
    return bytes(Writer(19).text(label).bytes_(inner).out)


def topic_spec(partitions: int = 1, *, replication: int = 1, tail: bytes = b"\0\0\4\0\0") -> bytes:
    return bytes(Writer(19).u8(1).u32(partitions).u32(replication).boolean(True).raw(tail).out)


def create_topic(name: str, spec: bytes = b"", *, dry_run: bool = False) -> bytes:
    inner = Writer(19).text(name).boolean(dry_run).u8(0).raw(spec or topic_spec()).out
    return wrapped("Topic", bytes(inner))


def their_batch(*values: bytes | tuple[bytes | None, bytes], timestamp_ms: int = 1000) -> bytes:
    """A batch as a Fluvio producer sends it."""
    records = [
        Record(value[1], value[0]) if isinstance(value, tuple) else Record(value)
        for value in values
    ]
    built = batch.build(records, timestamp_ms=timestamp_ms)
    return bytes(kernels.log_to_fluvio(built, 0, len(built), 0)[0])


def produce(
    topic: str,
    *batches: bytes,
    partition: int = 0,
    isolation: int = 1,
    timeout_ms: int = 1500,
    modules: bytes = b"\0\0\0\0",
) -> bytes:
    body = Writer(24).u8(0).i16(isolation).i32(timeout_ms).u32(1).text(topic).u32(1)
    return bytes(body.u32(partition).bytes_(b"".join(batches)).raw(modules).out)


def read_produced(reader: Reader) -> list[tuple[str, list[tuple[int, int, int]]]]:
    """[(topic, [(partition, error code, base offset)])]; only codes without fields."""

    def entry() -> tuple[int, int, int]:
        found = reader.u32(), reader.i16(), reader.i64()
        reader.i64()
        reader.i64()
        return found

    topics = reader.many(lambda: (reader.text(), reader.many(entry)))
    assert reader.i32() == 0
    reader.finish()
    return topics


def stream_fetch(
    topic: str,
    offset: int = 0,
    *,
    partition: int = 0,
    bytes_max: int = 1 << 20,
    isolation: int = 0,
    modules: bytes = b"\0\0\0\0",
    consumer_id: str | None = None,
) -> bytes:
    body = Writer(24).text(topic).u32(partition).i64(offset).i32(bytes_max).u8(isolation)
    return bytes(body.raw(modules).option_text(consumer_id).out)


@dataclasses.dataclass
class Streamed:
    """One frame of a stream."""

    stream_id: int
    error: int
    marks_end: int
    next_filter_offset: int
    start: int
    records: list[tuple[int, bytes | None, bytes]]
    reader: Reader


def read_streamed(reader: Reader, skip: Callable[[Reader], None] | None = None) -> Streamed:
    """`skip` steps over the fields of an error code that has some."""
    reader.text()
    stream_id, _ = reader.u32(), reader.u32()
    error = reader.i16()
    if skip is not None:
        skip(reader)
    end, next_filter, start = reader.i64(), reader.i64(), reader.i64()
    assert reader.u8() == 0
    record_set = reader.bytes_()
    reader.finish()
    return Streamed(stream_id, error, end, next_filter, start, read_records(record_set), reader)


def read_records(record_set: bytes) -> list[tuple[int, bytes | None, bytes]]:
    """(offset, key, value), numbered by position in the batch as a client does."""
    found: list[tuple[int, bytes | None, bytes]] = []
    at = 0
    while at < len(record_set):
        base, length = struct.unpack_from(">qi", record_set, at)
        (crc, attributes) = struct.unpack_from(">Ih", record_set, at + 17)
        end = at + 12 + length
        assert kernels.crc32c(record_set[at + 21 : end]) == crc
        start = at + BATCH_HEADER_BYTES + (4 if attributes & 0x10 else 0)
        reader = Reader(memoryview(record_set), start, end, 24)
        for index in range(reader.i32()):
            reader.varint()
            reader.u8()
            reader.varint()
            reader.varint()
            key = reader.option(reader.varbytes)
            found.append((base + index, key, reader.varbytes()))
            assert reader.varint() == 0
        reader.finish()
        at = end
    return found


def update_offsets(*taken: tuple[int, int]) -> bytes:
    body = Writer(0)
    body.many(taken, lambda entry: body.i64(entry[0]).u32(entry[1]))
    return bytes(body.out)


def ad_hoc(
    wasm: bytes,
    *,
    parameters: dict[str, str] | None = None,
    accumulator: bytes | None = None,
    lookback: int = 0,
    lookback_s: int | None = None,
) -> bytes:
    """One link of a chain, at version 24."""
    body = Writer(24).u8(1).bytes_(wasm)
    return bytes(_link_tail(body, parameters, accumulator, lookback, lookback_s))


def predefined(name: str, *, parameters: dict[str, str] | None = None) -> bytes:
    return bytes(_link_tail(Writer(24).u8(0).text(name), parameters, None, 0))


def _link_tail(
    body: Writer,
    parameters: dict[str, str] | None,
    accumulator: bytes | None,
    lookback: int,
    lookback_s: int | None = None,
) -> bytearray:
    if accumulator is None:
        body.u8(7).u8(0)
    else:
        body.u8(7).u8(1).bytes_(accumulator)
    body.texts(parameters or {})
    if lookback_s is not None:
        body.u8(1).u64(lookback).u8(1).u64(lookback_s).u32(0)
    elif lookback:
        body.u8(1).u64(lookback).u8(0)
    else:
        body.u8(0)
    return body.out


def chain(*links: bytes) -> bytes:
    return struct.pack(">I", len(links)) + b"".join(links)

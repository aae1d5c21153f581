"""A Fluvio client on a socket, and the bodies of requests, for attacks and walks."""

from __future__ import annotations

import socket
import struct
from typing import Final

from pentalog import kernels
from pentalog.model import batch
from pentalog.model.types import Record
from pentalog.protocols.fluvio.codec import Reader, Writer

SC_VERSION: Final = 19
SPU_VERSION: Final = 24
CREATE, DELETE, LIST, WATCH, UPDATE = 1001, 1002, 1003, 1004, 1006
PRODUCE, FETCH, FETCH_OFFSETS, STREAM_FETCH, UPDATE_OFFSETS = 0, 1, 1002, 1003, 1005
NO_MODULES: Final = bytes(4)


class FluvioClient:
    """One connection to either port."""

    def __init__(self, connection: socket.socket, version: int) -> None:
        self.socket = connection
        self.version = version
        self._number = 0

    def __enter__(self) -> FluvioClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def frame(self, key: int, body: bytes = b"", version: int | None = None) -> bytes:
        """Encode the next request."""
        self._number += 1
        chosen = self.version if version is None else version
        head = Writer(chosen).u16(key).i16(chosen).i32(self._number).text("walk").out
        return struct.pack(">I", len(head) + len(body)) + head + body

    def send(self, key: int, body: bytes = b"", version: int | None = None) -> int:
        """Send a request; returns its correlation id."""
        self.socket.sendall(self.frame(key, body, version))
        return self._number

    def receive(self) -> tuple[int, Reader]:
        """Correlation id and body of the next frame; raises `EOFError` after a hang-up."""
        (size,) = struct.unpack(">I", self._exactly(4))
        frame = self._exactly(size)
        (number,) = struct.unpack_from(">i", frame)
        return number, Reader(memoryview(frame), 4, len(frame), self.version)

    def ask(self, key: int, body: bytes = b"", version: int | None = None) -> Reader:
        """The answer to a request; frames of streams before it are passed over."""
        number = self.send(key, body, version)
        while True:
            found, reader = self.receive()
            if found == number:
                return reader

    def _exactly(self, count: int) -> bytes:
        got = bytearray()
        while len(got) < count:
            piece = self.socket.recv(count - len(got))
            if not piece:
                raise EOFError(f"the broker hung up after {len(got)} of {count} bytes")
            got += piece
        return bytes(got)


def wrapped(label: str, inner: bytes) -> bytes:
    """An object of the controller in its envelope."""
    return bytes(Writer(SC_VERSION).text(label).bytes_(inner).out)


def create_topic(name: str, partitions: int = 1) -> bytes:
    inner = Writer(SC_VERSION).text(name).boolean(False).u8(0)
    inner.u8(1).u32(partitions).u32(1).boolean(True).raw(b"\0\0\4\0\0")
    return wrapped("Topic", bytes(inner.out))


def create_module(name: str, wasm: bytes, *, dry_run: bool = False) -> bytes:
    inner = Writer(SC_VERSION).text(name).boolean(dry_run).u8(0)
    inner.u8(0).u8(0).u8(0).bytes_(wasm)
    return wrapped("SmartModule", bytes(inner.out))


def read_status(reader: Reader) -> tuple[str, int]:
    """Name and code of an answer to Create, Delete or Update."""
    return reader.text(), reader.i16()


def list_objects(label: str, *filters: str, summary: bool = True, system: bool = False) -> bytes:
    inner = Writer(SC_VERSION)
    inner.many(filters, inner.text)
    return wrapped(label, bytes(inner.boolean(summary).boolean(system).out))


def watch(label: str, *, summary: bool = True) -> bytes:
    return wrapped(label, bytes(Writer(SC_VERSION).i64(-1).boolean(summary).out))


def their_batch(*values: bytes) -> bytes:
    """A batch as a Fluvio producer sends it."""
    built = batch.build([Record(value) for value in values], timestamp_ms=1000)
    return bytes(kernels.log_to_fluvio(built, 0, len(built), 0)[0])


def produce(
    parts: list[tuple[str, int, bytes]], *, modules: bytes = NO_MODULES, isolation: int = 1
) -> bytes:
    """(topic, partition, record set) each in an entry of its own."""
    body = Writer(SPU_VERSION).u8(0).i16(isolation).i32(30_000).u32(len(parts))
    for topic, partition, record_set in parts:
        body.text(topic).u32(1).u32(partition).bytes_(record_set)
    return bytes(body.raw(modules).out)


def stream_fetch(
    topic: str,
    offset: int = 0,
    *,
    partition: int = 0,
    bytes_max: int = 1 << 20,
    modules: bytes = NO_MODULES,
    consumer_id: str | None = None,
) -> bytes:
    body = Writer(SPU_VERSION).text(topic).u32(partition).i64(offset).i32(bytes_max).u8(0)
    return bytes(body.raw(modules).option_text(consumer_id).out)


def chain(*links: bytes) -> bytes:
    return struct.pack(">I", len(links)) + b"".join(links)


def ad_hoc(wasm: bytes) -> bytes:
    """One link of a chain: a program that comes with the request."""
    return bytes(Writer(SPU_VERSION).u8(1).bytes_(wasm).u8(7).u8(0).u16(0).u8(0).out)

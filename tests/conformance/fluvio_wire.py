"""A Fluvio client of bare frames over a socket, for what the real one cannot be made to do."""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "protocols" / "fluvio"))

from fluvio_world import (
    create_topic,
    produce,
    read_produced,
    read_streamed,
    request,
    stream_fetch,
    their_batch,
    update_offsets,
    wrapped,
)

from pentalog.protocols.fluvio.codec import Reader, Writer

TIMEOUT_S = 180.0


class Wire:
    """One connection to either port; `close_all` ends those that nobody closed."""

    opened: ClassVar[list[Wire]] = []

    def __init__(self, port: int, version: int, timeout_s: float = TIMEOUT_S) -> None:
        self._version = version
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._buffer = bytearray()
        self._number = 0
        self.opened.append(self)

    @classmethod
    def close_all(cls) -> None:
        for wire in cls.opened:
            wire.close()
        cls.opened.clear()

    def send(self, key: int, body: bytes, version: int | None = None) -> int:
        self._number += 1
        chosen = self._version if version is None else version
        self._socket.sendall(request(key, body, chosen, self._number))
        return self._number

    def receive(self) -> tuple[int, Reader]:
        """(correlation id, body) of the next answer."""
        (size,) = struct.unpack(">I", self._exactly(4))
        frame = self._exactly(size)
        body = frame[4:]
        (number,) = struct.unpack_from(">i", frame)
        return number, Reader(memoryview(body), 0, len(body), self._version)

    def ask(self, key: int, body: bytes) -> Reader:
        number = self.send(key, body)
        while True:
            found, reader = self.receive()
            if found == number:
                return reader

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            part = self._socket.recv(1 << 20)
            if not part:
                raise ConnectionResetError("the broker closed the connection")
            self._buffer += part
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        return found


def make_topic(sc: Wire, name: str) -> None:
    answer = sc.ask(1001, create_topic(name))
    assert (answer.text(), answer.i16()) == (name, 0)


def store_module(sc: Wire, name: str, wasm: bytes) -> None:
    inner = Writer(19).text(name).boolean(False).u8(0).u8(0).u8(0).u8(0).bytes_(wasm).out
    answer = sc.ask(1001, wrapped("SmartModule", bytes(inner)))
    assert (answer.text(), answer.i16()) == (name, 0)


def write(spu: Wire, topic: str, *values: bytes, durable: bool = True) -> int:
    """The offset of the first."""
    sent = produce(topic, their_batch(*values), isolation=-1 if durable else 1, timeout_ms=30_000)
    ((_, ((_, error, offset),)),) = read_produced(spu.ask(0, sent))
    assert error == 0
    return offset


def ends(spu: Wire, topic: str) -> tuple[int, int]:
    """(start, end) of a topic's only partition."""
    answer = spu.ask(1002, bytes(Writer(24).u32(1).text(topic).u32(1).u32(0).out))
    answer.u32(), answer.text(), answer.u32()
    assert answer.i16() == 0
    answer.u32()
    return answer.i64(), answer.i64()


def read(port: int, topic: str, count: int) -> list[bytes]:
    """The first committed records of a topic, on a connection of their own."""
    spu = Wire(port, 24)
    stream = spu.send(1003, stream_fetch(topic, isolation=1))
    found: list[bytes] = []
    while len(found) < count:
        number, reader = spu.receive()
        if number != stream:
            continue
        frame = read_streamed(reader)
        found += [value for _, _, value in frame.records]
        spu.send(1005, update_offsets((frame.records[-1][0] + 1, frame.stream_id)), version=0)
    spu.close()
    return found

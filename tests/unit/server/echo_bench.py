"""A small protocol and a real server for it, so that connections are tested over real sockets.

A frame is a length of four bytes and a command:

| command | answer |
|---|---|
| `E` text | the text |
| `A` count | so many bytes of memory |
| `F` position, length | that range of the test's file, between a head and a tail |
| `P` name | whatever the test fills the place `name` with |
| `W` microseconds | the command, after work that takes so long |
| `R` count | `reserved`, once memory for so many bytes is reserved |
| `L` name | `hello`, after that name has logged in |
| `H` | `bye`, then a hang-up |
| `X` | none: the session raises |
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pentalog.broker.security import Principal
from pentalog.config import Config
from pentalog.log.files import Handle
from pentalog.metrics import Metrics, Traffic
from pentalog.model.later import Later
from pentalog.model.types import FilePiece
from pentalog.server.listener import Listeners
from pentalog.server.reply_memory import ReplyMemory
from pentalog.session import Context, Place, Replies, Session

LENGTH = struct.Struct(">I")
RANGE = struct.Struct(">QI")


def frame(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


class EchoSession:
    def __init__(self, bench: Bench, context: Context, replies: Replies) -> None:
        self.context = context
        self.replies = replies
        self.closed = 0
        self.calls = 0
        self.wanted = 0
        self._bench = bench

    def receive(self, data: memoryview) -> int:
        self.calls += 1
        used = 0
        self.wanted = 0
        while len(data) - used >= 4 and not self.replies.full:
            (length,) = LENGTH.unpack_from(data, used)
            if len(data) - used - 4 < length:
                self.wanted = length + 4
                break
            self._serve(bytes(data[used + 4 : used + 4 + length]))
            used += 4 + length
        return used

    def _serve(self, payload: bytes) -> None:
        self._bench.served += 1
        command, rest = payload[:1], payload[1:]
        if command == b"E":
            self.replies.send(LENGTH.pack(len(rest)), rest)
        elif command == b"A":
            count = int(rest)
            self.replies.send(LENGTH.pack(count), bytes(count))
        elif command == b"F":
            position, length = RANGE.unpack(rest)
            assert self._bench.file is not None
            self.replies.send(
                LENGTH.pack(length + 8),
                b"head",
                FilePiece(self._bench.file, position, length),
                b"tail",
            )
        elif command == b"P":
            self._bench.places[rest.decode()] = self.replies.place()
        elif command == b"W":
            end_s = time.monotonic() + int(rest) / 1e6
            while time.monotonic() < end_s:
                pass
            self.replies.send(frame(payload))
        elif command == b"R":
            place, reserved = self.replies.place(), self.replies.reserve(int(rest))

            def answer(_: Later[Callable[[], None]]) -> None:
                place.fill(frame(b"reserved"))
                reserved.value()

            reserved.then(answer)
        elif command == b"L":
            self.context.access.become(Principal("User", rest.decode()), "echo")
            self.replies.send(frame(b"hello"))
        elif command == b"H":
            self.replies.send(frame(b"bye"))
            self.replies.hang_up()
        else:
            raise ZeroDivisionError("the session has a bug")

    def close(self) -> None:
        self.closed += 1


@dataclass
class Bench:
    """What a test may look at and poke."""

    loop: asyncio.AbstractEventLoop
    config: Config
    endpoint_settings: dict[str, Any]
    metrics: Metrics = field(default_factory=Metrics)
    sessions: list[EchoSession] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)
    file: Handle | None = None
    served: int = 0
    trust: ssl.SSLContext | None = None
    """What the client believes, where the server speaks TLS."""
    listeners: Listeners = field(init=False)

    @property
    def address(self) -> tuple[str, int]:
        found = self.listeners.addresses[self.config.listen[0].name]
        return found.host, found.port

    @property
    def traffic(self) -> Traffic:
        (door,) = self.listeners.observation.doors()
        return door.traffic

    @property
    def reply_memory(self) -> ReplyMemory:
        return self.listeners._limits.replies

    async def connect(
        self, source: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.trust is None:
            return await asyncio.open_connection(*self.address, local_addr=(source, 0))
        return await asyncio.open_connection(
            *self.address, ssl=self.trust, server_hostname="localhost"
        )

    def open_session(self, context: Context, replies: Replies) -> Session:
        session = EchoSession(self, context, replies)
        self.sessions.append(session)
        return session


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = LENGTH.unpack(await reader.readexactly(4))
    return await reader.readexactly(length)


async def until(met: Callable[[], bool], timeout_s: float = 50) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        if met():
            return
        assert asyncio.get_running_loop().time() < deadline, "waited too long"
        await asyncio.sleep(0.002)


async def turns(count: int = 50) -> None:
    """Let the loop, which serves both ends, do what is ready: far more turns than anything takes.

    To see that something does not happen; a time would mean little on a busy machine.
    """
    for _ in range(count):
        await asyncio.sleep(0)


Run = Callable[..., None]

"""Quotas at a Kafka connection: whom it belongs to, what it used, and how long it is muted.

As in Kafka, a client over its quota is answered at once, told the time in `throttle_time_ms`, and
not read from for as long.  A fetch over its quota is answered without records.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pentalog.broker.operation import Meter
from pentalog.model.kio_schemas import load_response_schema
from pentalog.model.types import FilePiece, Piece
from pentalog.protocols.kafka.messages import Line
from pentalog.session import Context, Place, Replies

if TYPE_CHECKING:
    from pentalog.broker.port import Waiting

_PRODUCE: Final = 0
_FETCH: Final = 1
_API_VERSIONS: Final = 18
_PRODUCE_FLEXIBLE: Final = 9
_HEADER_BYTES: Final = 14
"""Length, key, version, correlation id, and the size of the client id."""


class Allowance:
    """What one connection may use."""

    __slots__ = (
        "_client",
        "_meter",
        "_quotas",
        "_replies",
        "_runtime",
        "_totals",
        "_version",
        "user",
    )

    def __init__(self, context: Context, replies: Replies) -> None:
        self.user = context.access.who.name
        self._quotas = context.broker.quotas
        self._runtime = context.runtime
        self._totals = context.totals
        self._replies = replies
        self._client = ""
        self._meter: Meter | None = None
        self._version = -1

    def identify(self, data: memoryview) -> None:
        """Learn the client's name from the first request in what was received.

        A connection has one name in practice; where it changes, the whole read counts for it.
        """
        if len(data) < _HEADER_BYTES:
            return
        size = int.from_bytes(data[12:14], "big", signed=True)
        if len(data) < _HEADER_BYTES + size:
            return
        client = str(data[14 : 14 + max(0, size)], "utf-8", "replace")
        if client != self._client:
            self._client = client
            self._meter = None

    def become(self, user: str) -> None:
        """The connection has logged in."""
        self.user = user
        self._meter = None

    @property
    def meter(self) -> Meter:
        if self._meter is None or self._version != self._quotas.version:
            self._meter = self._quotas.meter(self.user, self._client)
            self._version = self._quotas.version
        return self._meter

    def received(self, key: int, size_bytes: int) -> int:
        """Count a request; returns the time the client is told, and muted for."""
        meter = self.meter
        delay_ms = meter.work_delay_ms
        if key == _PRODUCE:
            delay_ms = max(delay_ms, meter.written(size_bytes))
        if delay_ms:
            self._mute(delay_ms)
        return delay_ms

    def _mute(self, delay_ms: int) -> None:
        self._totals.throttles += 1
        self._replies.mute(delay_ms)

    def throttle(self, line: Line, key: int, version: int, delay_ms: int) -> Line:
        """Mute the client; the line for the answer that tells it."""
        self._mute(delay_ms)
        inner = line.line if isinstance(line, ThrottledLine) else line
        return ThrottledLine(inner, key, version, delay_ms)

    def fetched(self, size_bytes: int) -> int:
        """Count an answer to a fetch, or say for how long nothing may be sent."""
        delay_ms = self.meter.read(size_bytes)
        if delay_ms:
            self._mute(delay_ms)
        return delay_ms


class ThrottledLine:
    """A line whose one answer tells the client to wait."""

    __slots__ = ("_delay_ms", "_key", "_version", "line")

    def __init__(self, line: Line, key: int, version: int, delay_ms: int) -> None:
        self.line = line
        self._key = key
        self._version = version
        self._delay_ms = delay_ms

    @property
    def waits(self) -> set[Waiting]:
        return self.line.waits

    def send(self, *pieces: Piece) -> None:
        self.line.send(*self.marked(pieces))

    def place(self) -> Place:
        return _ThrottledPlace(self, self.line.place())

    def hang_up(self) -> None:
        self.line.hang_up()

    def hold(self) -> Callable[[], None]:
        return self.line.hold()

    def marked(self, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        """The same answer with the time in it; what others may hold too is copied first."""
        if self._key == _PRODUCE:
            return (_mark_produce(pieces, self._version, self._delay_ms),)
        position = _position(self._key, self._version)
        if position and pieces:
            whole = bytearray()
            for piece in pieces:
                if isinstance(piece, FilePiece):
                    return pieces
                whole += piece
            struct.pack_into(">i", whole, position, self._delay_ms)
            return (whole,)
        return pieces


class _ThrottledPlace:
    __slots__ = ("_kept", "_line")

    def __init__(self, line: ThrottledLine, kept: Place) -> None:
        self._line = line
        self._kept = kept

    def fill(self, *pieces: Piece) -> None:
        self._kept.fill(*(self._line.marked(pieces) if pieces else ()))


def _mark_produce(pieces: tuple[Piece, ...], version: int, delay_ms: int) -> bytearray:
    """Several answers in a row; the time is the last field of each."""
    out = bytearray()
    for piece in pieces:
        assert not isinstance(piece, FilePiece), "an answer to Produce carries no records"
        out += piece
    behind = 5 if version >= _PRODUCE_FLEXIBLE else 4
    position = 0
    while position < len(out):
        position += 4 + int.from_bytes(out[position : position + 4], "big")
        struct.pack_into(">i", out, position - behind, delay_ms)
    return out


@lru_cache(maxsize=1024)
def _position(key: int, version: int) -> int:
    """Where in an answer the time stands, from its end if below 0; 0 if it is not told."""
    schema: Any = load_response_schema(key, version)
    position = 9 if schema.__header_schema__.__flexible__ else 8
    for field in fields(schema):
        if key == _FETCH or field.name == "throttle_time":
            return 0 if key == _FETCH else position
        if field.metadata.get("kafka_type") != "error_code":
            break
        position += 2
    last = fields(schema)[-1]
    if key == _API_VERSIONS or last.name != "throttle_time":
        return 0
    return -5 if schema.__flexible__ else -4

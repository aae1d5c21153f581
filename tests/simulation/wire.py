"""A connection between a simulated client and a session: bytes in, frames out, waits as awaits.

Client code is written as coroutines.  They run on no event loop: the world resumes one when the
frame it waits for has arrived, or throws `Lost` into it when the broker has gone.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.files import SimulatedHandle

from pentalog.model.types import FilePiece, Piece
from pentalog.session import Endpoint, Session

if TYPE_CHECKING:
    from pentalog.session import Context

_LENGTH: Final = struct.Struct(">I")


class Lost(Exception):
    """The connection ended before the answer arrived: the request was served or was not."""


class Reply:
    """A frame that has not arrived yet; awaited by one client."""

    __slots__ = ("error", "ready", "value")

    def __init__(self) -> None:
        self.ready = False
        self.value: bytes = b""
        self.error: Lost | None = None

    def fill(self, value: bytes) -> None:
        self.ready, self.value = True, value

    def lose(self) -> None:
        if not self.ready:
            self.ready, self.error = True, Lost("the connection ended")

    def __await__(self) -> Generator[Reply, None, bytes]:
        if not self.ready:
            yield self
        if self.error is not None:
            raise self.error
        return self.value


class _Place:
    """Implements `Place`."""

    __slots__ = ("_line", "pieces")

    def __init__(self, line: Connection) -> None:
        self._line = line
        self.pieces: tuple[Piece, ...] | None = None

    def fill(self, *pieces: Piece) -> None:
        assert self.pieces is None, "filled twice"
        self.pieces = pieces
        self._line.flush()


class Connection:
    """Implements `Replies` for one session, and is the client's end as well."""

    def __init__(
        self, endpoint: Endpoint, context: Context, soon: Callable[[Callable[[], None]], None]
    ) -> None:
        self.ended = False
        self._in_order = endpoint.in_order
        self._soon = soon
        self._held = False
        self._line: deque[_Place] = deque()
        self._arrived = bytearray()
        self._frames: deque[bytes] = deque()
        self._waiting: deque[Reply] = deque()
        self._unread = b""
        self.tap: Callable[[bytes], None] | None = None
        """Called with every frame that arrives, also with those that nothing waits for."""
        self._session: Session = endpoint.open(context, self)

    # The client's end

    def ask(self, frame: bytes) -> Reply:
        """Send a frame; the reply is the next frame that comes back."""
        reply = self.next_frame()
        self.send_frame(frame)
        return reply

    def next_frame(self) -> Reply:
        reply = Reply()
        if self._frames:
            reply.fill(self._frames.popleft())
        elif self.ended:
            reply.lose()
        else:
            self._waiting.append(reply)
        return reply

    @property
    def has_frame(self) -> bool:
        """Would `next_frame` be ready at once?"""
        return bool(self._frames) or self.ended

    def send_frame(self, frame: bytes) -> None:
        """Send a frame; its length is put in front."""
        self.send_bytes(_LENGTH.pack(len(frame)) + frame)

    def send_bytes(self, data: bytes) -> None:
        if not self.ended:
            self._unread += data
            self._soon(self._receive)

    def close(self) -> None:
        """The client goes."""
        if not self.ended:
            self.lose()
            self._session.close()

    def lose(self) -> None:
        """The broker, or the way to it, has gone."""
        self.ended = True
        for reply in self._waiting:
            reply.lose()
        self._waiting.clear()

    def _receive(self) -> None:
        if self.ended or not self._unread or self.full:
            return
        buffer = bytearray(self._unread)
        used = self._session.receive(memoryview(buffer))
        self._unread = self._unread[used:]
        # What was sent must not depend on what the buffer holds next.
        buffer[:] = b"\xaa" * len(buffer)

    # The session's end

    @property
    def full(self) -> bool:
        return self._held or len(self._line) >= 1000

    def send(self, *pieces: Piece) -> None:
        self.place().fill(*pieces)

    def place(self) -> _Place:
        place = _Place(self)
        self._line.append(place)
        return place

    def hang_up(self) -> None:
        self._soon(self.lose)

    def mute(self, delay_ms: int) -> None: ...

    def hold(self) -> Callable[[], None]:
        self._held = True
        return self._let_go

    def _let_go(self) -> None:
        self._held = False
        self._soon(self._receive)

    def when_room(self, run: Callable[[], None]) -> None:
        self._soon(run)

    def flush(self) -> None:
        """Move answers that are next in line to the client, or all if order does not matter."""
        filled = []
        while self._line and self._line[0].pieces is not None:
            filled.append(self._line.popleft())
        if not self._in_order:
            filled += [place for place in self._line if place.pieces is not None]
            self._line = deque(place for place in self._line if place.pieces is None)
        if not filled:
            return
        for place in filled:
            for piece in place.pieces or ():
                self._arrived += _bytes_of(piece)
        arrived = self._arrived
        while len(arrived) >= 4:
            (length,) = _LENGTH.unpack_from(arrived)
            if len(arrived) < 4 + length:
                break
            frame = bytes(arrived[4 : 4 + length])
            del arrived[: 4 + length]
            if self.tap is not None:
                self.tap(frame)
            if self._waiting:
                self._waiting.popleft().fill(frame)
            else:
                self._frames.append(frame)
        if self._unread:
            self._soon(self._receive)


def _bytes_of(piece: Piece) -> bytes | memoryview:
    if isinstance(piece, FilePiece):
        file: Any = piece.file
        assert isinstance(file, SimulatedHandle)
        return bytes(file.inode.cache[piece.position : piece.position + piece.length])
    return piece

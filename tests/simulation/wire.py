"""A connection between a simulated client and a session: bytes in, frames out, waits as awaits.

Client code is written as coroutines.  They run on no event loop: the world resumes one when the
frame it waits for has arrived, or throws `Lost` into it when the broker has gone.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.files import SimulatedHandle

from pentalog.model.later import Later
from pentalog.model.types import FilePiece, Piece
from pentalog.session import Endpoint, Session

if TYPE_CHECKING:
    from tests.simulation.runtime import VirtualRuntime, VirtualTimer

    from pentalog.session import Context

_LENGTH: Final = struct.Struct(">I")
_SCARCE_SHARE: Final = 0.1
"""Of all answers, those that have to wait for memory."""


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

    __slots__ = ("_line", "ends", "pieces")

    def __init__(self, line: Connection) -> None:
        self._line = line
        self.pieces: tuple[Piece, ...] | None = None
        self.ends = False
        """The connection is closed after the answers before this one have left."""

    def fill(self, *pieces: Piece) -> None:
        assert self.pieces is None, "filled twice"
        self.pieces = pieces
        self._line.flush()


class Connection:
    """Implements `Replies` for one session, and is the client's end as well."""

    def __init__(self, endpoint: Endpoint, context: Context, runtime: VirtualRuntime) -> None:
        self.ended = False
        self._in_order = endpoint.in_order
        self._runtime = runtime
        self._soon = runtime.soon
        self._holds = 0
        self._reserving = 0
        self._muted: VirtualTimer | None = None
        self._ending = False
        """The session has hung up; answers before that may still be on their way."""
        self.accepted_bytes = 0
        """What the session has taken of all that was sent."""
        self.sent_bytes = 0
        self._line: deque[_Place] = deque()
        self._arrived = bytearray()
        self._frames: deque[bytes] = deque()
        self._waiting: deque[Reply] = deque()
        self._under_way: deque[bytes] = deque()
        """Deliveries that have not arrived at the broker."""
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

    def send_bytes(self, data: bytes, cuts: Sequence[int] = ()) -> None:
        """Send bytes; `cuts` says where a delivery ends before all of them have arrived."""
        if self.ended:
            return
        self.sent_bytes += len(data)
        start = 0
        for end in (*cuts, len(data)):
            self._under_way.append(data[start:end])
            start = end
        self._soon(self._deliver)

    @property
    def idle(self) -> bool:
        """Does a clean stop close this connection at once?"""
        return not self._line

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

    def _deliver(self) -> None:
        if self.ended or not self._under_way:
            return
        self._unread += self._under_way.popleft()
        if self._under_way:
            self._soon(self._deliver)
        self._receive()

    def _receive(self) -> None:
        if self.ended or self._ending or not self._unread or self.full:
            return
        buffer = bytearray(self._unread)
        used = self._session.receive(memoryview(buffer))
        # Sessions may move what they have not used; it is offered again as they left it.
        self._unread = bytes(buffer[used:])
        self.accepted_bytes += used
        # What was sent must not depend on what the buffer holds next.
        buffer[:] = b"\xaa" * len(buffer)

    # The session's end

    @property
    def full(self) -> bool:
        held = self._holds > 0 or self._reserving > 0
        return held or self._muted is not None or len(self._line) >= 1000

    def send(self, *pieces: Piece) -> None:
        self.place().fill(*pieces)

    def place(self) -> _Place:
        place = _Place(self)
        self._line.append(place)
        return place

    def hang_up(self) -> None:
        if not self._ending:
            self._ending = True
            place = self.place()
            place.ends = True
            self._soon(place.fill)

    def mute(self, delay_ms: int) -> None:
        if self._muted is None:
            self._muted = self._runtime.after(delay_ms, self._unmute)

    def _unmute(self) -> None:
        self._muted = None
        self._receive()

    def hold(self) -> Callable[[], None]:
        self._holds += 1
        return self._let_go

    def _let_go(self) -> None:
        self._holds -= 1
        if not self._holds:
            self._soon(self._receive)

    def reserve(self, size: int) -> Later[Callable[[], None]]:
        if self._runtime.random.random() >= _SCARCE_SHARE:
            return Later.now(_nothing)
        later: Later[Callable[[], None]] = Later()
        self._reserving += 1
        self._soon(lambda: self._reserved(later))
        return later

    def _reserved(self, later: Later[Callable[[], None]]) -> None:
        self._reserving -= 1
        if not self.ended:
            later.fill(_nothing)
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
        ends = False
        for place in filled:
            ends |= place.ends
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
        if ends:
            self.lose()
        elif self._unread:
            self._soon(self._receive)


def _nothing() -> None: ...


def _bytes_of(piece: Piece) -> bytes | memoryview:
    if isinstance(piece, FilePiece):
        file: Any = piece.file
        assert isinstance(file, SimulatedHandle)
        return bytes(file.inode.cache[piece.position : piece.position + piece.length])
    return piece

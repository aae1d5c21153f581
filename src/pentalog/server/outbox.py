"""The way out of one connection: answers in line, sent in as few calls as possible.

Everything leaves through a duplicate of the transport's descriptor.  The transport itself never
writes: its queue would be overtaken by what is sent here, and it cannot send files.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from math import inf
from time import monotonic
from typing import Final, TypeAlias, TypedDict

from pentalog.metrics import Traffic
from pentalog.model.later import Later
from pentalog.model.types import FilePiece, Piece
from pentalog.runtime import Turns
from pentalog.server.descriptors import file_too_short, unsent_bytes
from pentalog.server.places import LaterPlace, NoPlace
from pentalog.server.reply_memory import UNCOUNTED_BYTES, ReplyAccount, ReplyMemory
from pentalog.server.tap import Tap
from pentalog.session import Place

_TURN_BYTES: Final = 1 << 20
"""Sent at most before other connections get their turn."""
_PIECES_MAX: Final = 64
_JOIN_BYTES: Final = 256 << 10
_COPY_BYTES: Final = 16 << 10
"""File pieces up to this size are read and leave with what surrounds them: one call, one packet."""
_FILE_BYTES_MAX: Final = 64 << 20
_FAREWELL_BYTES: Final = 256 << 10
"""A peer that reads this much in time gets as much time again for the rest."""
_MORE: Final = getattr(socket, "MSG_MORE", 0)


class _End(Enum):
    HANG_UP = auto()


_Ready: TypeAlias = Piece | _End
_Entry: TypeAlias = _Ready | LaterPlace


class OutboxLimits(TypedDict):
    """What one connection may queue; see `Outbox`."""

    memory: ReplyMemory
    block: str
    in_order: bool
    memory_bytes_max: int
    places_max: int
    farewell_s: float


class Outbox:
    """`session.Replies` over one socket.

    `room` is called when a connection that had to stop (`await_room`) may go on, `ended` once
    when everything up to a hang-up has left, `failed` once when the peer or a file is gone.
    """

    __slots__ = (
        "_account",
        "_armed",
        "_awaiting_room",
        "_closed",
        "_ending",
        "_farewell",
        "_farewell_from",
        "_farewell_s",
        "_file_bytes",
        "_gave_up",
        "_held",
        "_in_order",
        "_line",
        "_loop",
        "_memory_bytes",
        "_memory_bytes_max",
        "_metrics",
        "_muted",
        "_patient",
        "_places",
        "_places_max",
        "_pushing",
        "_ready",
        "_reserving",
        "_scheduled",
        "_socket",
        "_turns",
        "ended",
        "failed",
        "holding",
        "interrupted",
        "room",
        "tap",
        "until_s",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        to: socket.socket,
        metrics: Traffic,
        turns: Turns,
        *,
        memory: ReplyMemory,
        block: str,
        in_order: bool,
        memory_bytes_max: int,
        places_max: int,
        farewell_s: float,
    ) -> None:
        """`turns`: for pushes; `block`: the address whose clients share `memory` with others.

        `farewell_s`: time the peer has to read what precedes a hang-up.
        """
        self.holding = False
        """While a session serves what was read: its answers leave together at the end."""
        self.until_s = inf
        """When the session's share of this turn ends, while it serves or pushes."""
        self.interrupted = False
        """The session had to stop because its share of a turn was used up."""
        self.room: Callable[[], None] = _nothing
        self.ended: Callable[[], None] = _nothing
        self.failed: Callable[[str], None] = _ignore
        self.tap: Tap | None = None
        """Somebody who watches what leaves."""
        self._loop = loop
        self._socket = to
        self._metrics = metrics
        self._in_order = in_order
        self._memory_bytes_max = memory_bytes_max
        self._places_max = places_max
        self._ready: deque[_Ready] = deque()
        # Everything from the first unfilled place on; what stands before it is in `_ready`.
        self._line: deque[_Entry] = deque()
        self._account = ReplyAccount(memory, block, self)
        self._memory_bytes = 0
        self._reserving: deque[tuple[int, Later[Callable[[], None]]]] = deque()
        self._file_bytes = 0
        self._places = 0
        self._armed = False
        self._awaiting_room = False
        self._closed = False
        self._ending = False
        self._farewell: asyncio.TimerHandle | None = None
        self._farewell_from = 0
        self._farewell_s = farewell_s
        self._gave_up = False
        self._held = 0
        self._muted: asyncio.TimerHandle | None = None
        self._patient: deque[Callable[[], None]] = deque()
        self._pushing = False
        self._scheduled = False
        self._turns = turns

    @property
    def full(self) -> bool:
        if (
            self._muted is not None
            or self._held > 0
            or self._memory_bytes > self._memory_bytes_max
            or self._places >= self._places_max
            or self._file_bytes > _FILE_BYTES_MAX
            or (self._account.charged_bytes and self._account.over)
            or self._reserving
        ):
            return True
        if self.until_s != inf and monotonic() >= self.until_s:
            self.interrupted = True
            return True
        return False

    @property
    def ending(self) -> bool:
        """Nothing more is taken: the connection hangs up or is gone."""
        return self._ending or self._closed

    @property
    def idle(self) -> bool:
        """Nothing is queued and nothing is waited for."""
        return not self._ready and not self._places

    @property
    def queued_bytes(self) -> int:
        """What this connection holds in memory for its peer."""
        return self._memory_bytes

    @property
    def taken_bytes(self) -> int:
        """What the peer's system has received since the connection was made."""
        sent_bytes = self._metrics.sent_bytes
        return sent_bytes if self._closed else sent_bytes - unsent_bytes(self._socket)

    @property
    def unread(self) -> bool:
        """Something is ready that the peer has not taken yet."""
        return bool(self._ready)

    @property
    def between_answers(self) -> bool:
        """What leaves next is the beginning of an answer."""
        return not self._ready

    def send(self, *pieces: Piece) -> None:
        if self._ending or self._closed:
            return
        self._count(pieces)
        (self._line or self._ready).extend(pieces)
        if not self.holding:
            self._schedule()

    def place(self) -> Place:
        if self._ending or self._closed:
            return NoPlace()
        place = LaterPlace(self)
        self._places += 1
        if self._in_order:
            self._line.append(place)
        return place

    def filled(self, place: LaterPlace, pieces: Sequence[Piece]) -> None:
        """A place has got its answer; it leaves as soon as what stands before it has."""
        if self._closed or self._gave_up:
            return
        self._places -= 1
        self._count(pieces)
        if self._in_order:
            place.pieces = pieces
            self._move_up()
        elif not self._ending:
            self._ready.extend(pieces)
        if not self.holding:
            self._schedule()

    def hang_up(self) -> None:
        if self._ending or self._closed:
            return
        self._ending = True
        if self._farewell is None:
            self._await_farewell()
        (self._line or self._ready).append(_End.HANG_UP)
        if not self.holding:
            self._schedule()

    def _await_farewell(self) -> None:
        self._farewell_from = self.taken_bytes
        self._farewell = self._loop.call_later(self._farewell_s, self._end_farewell)

    def _end_farewell(self) -> None:
        """Close, unless the peer reads what was queued before the hang-up at a decent speed."""
        if self.taken_bytes - self._farewell_from >= _FAREWELL_BYTES:
            self._await_farewell()
        else:
            self.failed(f"it did not read its last answers within {self._farewell_s:g} s")

    def allow(self, memory_bytes_max: int, places_max: int) -> None:
        """Set what may be queued, and how many answers may be waited for."""
        self._memory_bytes_max = memory_bytes_max
        self._places_max = places_max

    def give_up_places(self) -> None:
        """Hang up after the answers that are there; nobody waits for the others any more."""
        self._gave_up = True
        self._line.clear()
        self._places = 0
        if self._ending and _End.HANG_UP not in self._ready:
            self._ending = False
        self.hang_up()

    def mute(self, delay_ms: int) -> None:
        if self._closed:
            return
        until = self._loop.time() + delay_ms / 1000
        if self._muted is not None:
            if self._muted.when() >= until:
                return
            self._muted.cancel()
        self._muted = self._loop.call_at(until, self._unmute)

    def hold(self) -> Callable[[], None]:
        # A login and a long request may hold at the same time.
        self._held += 1
        return self._let_go

    def when_room(self, run: Callable[[], None]) -> None:
        if self._ending or self._closed:
            return
        self._patient.append(run)
        if self._has_room():
            self._schedule()
        else:
            self._await_memory()

    def reserve(self, size: int) -> Later[Callable[[], None]]:
        reservation: Later[Callable[[], None]] = Later()
        if self._closed:
            return reservation
        if not self._reserving and self._is_ready_to_reserve and self._account.grants(size):
            reservation.fill(self._account.reserve(size))
        else:
            self._reserving.append((size, reservation))
            self._await_memory()
        return reservation

    def await_room(self) -> None:
        """Call `room` as soon as half of what made this connection full has left."""
        self._awaiting_room = True
        if self._has_room():
            self._schedule()
        else:
            self._await_memory()

    def flush(self) -> None:
        """Send what can be sent now; the rest follows by itself."""
        self._flush()
        if self._reserving or self._patient:
            # What has left now may be what they waited for.
            self._schedule()

    def _flush(self) -> None:
        if self._ready and not self._armed and not self._drain():
            self._arm()

    def end(self) -> None:
        """Tell the peer that nothing more comes; it may still be read from."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._ready.clear()
        self._line.clear()
        self._patient.clear()
        self._reserving.clear()
        self._memory_bytes = self._file_bytes = 0
        self._account.close()
        if self._muted is not None:
            self._muted.cancel()
        if self._farewell is not None:
            self._farewell.cancel()
        self._disarm()
        self._socket.close()

    def _count(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, FilePiece):
                self._file_bytes += piece.length
            else:
                self._memory_bytes += len(piece)
        if self._memory_bytes > UNCOUNTED_BYTES:
            self._account.queued(self._held_bytes())

    @property
    def _is_ready_to_reserve(self) -> bool:
        """May more be read for this connection, if there is memory for it?

        Not `_has_room`: what holds a place until it is reserved must not wait for that place, nor
        for answers that stand behind it.
        """
        lean = self._memory_bytes * 2 <= self._memory_bytes_max or not self._ready
        return lean and self._muted is None

    def _await_memory(self) -> None:
        """See to it that this is woken when its address may be given more answers."""
        if self._reserving:
            size = self._reserving[0][0]
            if self._is_ready_to_reserve and not self._account.grants(size):
                self._account.await_grant(size, self._tell_room)
        elif self._account.over:
            self._account.wait(self._tell_room)

    def give_up(self) -> None:
        self.failed("it does not read its answers, and others wait for their memory")

    def _move_up(self) -> None:
        line = self._line
        while line:
            head = line[0]
            if isinstance(head, LaterPlace):
                if head.pieces is None:
                    return
                self._ready.extend(head.pieces)
            else:
                self._ready.append(head)
            line.popleft()

    def _has_room(self) -> bool:
        return (
            self._muted is None
            and not self._held
            and self._memory_bytes * 2 <= self._memory_bytes_max
            and self._places * 2 <= self._places_max
            and self._file_bytes * 2 <= _FILE_BYTES_MAX
            and not self._reserving
            and not self._account.over
        )

    def _unmute(self) -> None:
        self._muted = None
        self._tell_room()

    def _let_go(self) -> None:
        self._held -= 1
        if not self._closed:
            self._schedule()

    def _schedule(self) -> None:
        # Answers that become ready in the same turn (one sync serves many) leave in one call.
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._scheduled_flush)

    def _scheduled_flush(self) -> None:
        self._scheduled = False
        if not self._closed:
            self._flush()
            self._tell_room()

    def _arm(self) -> None:
        self._armed = True
        self._loop.add_writer(self._socket.fileno(), self._writable)

    def _writable(self) -> None:
        if self._drain():
            self._disarm()
        self._tell_room()

    def _disarm(self) -> None:
        # Before the descriptor is closed: epoll keeps a registration while a duplicate is open.
        if self._armed:
            self._armed = False
            self._loop.remove_writer(self._socket.fileno())

    def _tell_room(self) -> None:
        if self._closed:
            return
        if self._awaiting_room and self._has_room():
            self._awaiting_room = False
            self.room()
        if not self._pushing and not self._closed and self._may_push():
            self._pushing = True
            self._turns.do(self._push)
        if self._reserving or self._awaiting_room or self._patient:
            self._await_memory()

    def _may_push(self) -> bool:
        if self._reserving:
            return self._is_ready_to_reserve and self._account.grants(self._reserving[0][0])
        return bool(self._patient) and self._has_room()

    def _push(self) -> None:
        """Call those who wait for memory or room, until this turn's time is used up."""
        self._pushing = False
        start_s = monotonic()
        self.until_s = start_s + self._turns.left_s
        try:
            for _ in range(len(self._reserving) + len(self._patient)):
                if self._closed or not self._may_push() or monotonic() >= self.until_s:
                    break
                if self._reserving:
                    size, reservation = self._reserving.popleft()
                    reservation.fill(self._account.reserve(size))
                else:
                    self._patient.popleft()()
        finally:
            self.until_s = inf
            self._turns.spend(monotonic() - start_s)
        if not self._closed and self._may_push():
            self._schedule()
        elif self._reserving or self._patient:
            self._await_memory()

    def _drain(self) -> bool:
        """Send what is ready, up to this turn's share; False if the socket is full."""
        drained = self._send_ready()
        if self._account.charged_bytes:
            self._account.queued(self._held_bytes())
        return drained

    def _held_bytes(self) -> int:
        """What is queued in memory: of a piece that has left in part, all is still there."""
        head = self._ready[0] if self._ready else None
        if isinstance(head, memoryview):
            return self._memory_bytes + memoryview(head.obj).nbytes - head.nbytes
        return self._memory_bytes

    def _send_ready(self) -> bool:
        budget = _TURN_BYTES
        ready = self._ready
        try:
            while ready:
                head = ready[0]
                if isinstance(head, _End):
                    if not self._handed_over():
                        return False
                    ready.clear()
                    self.ended()
                elif budget <= 0:
                    self._schedule()
                    break
                elif isinstance(head, FilePiece) and head.length > _COPY_BYTES:
                    budget -= self._send_file(head, budget)
                else:
                    sent, whole = self._send_memory()
                    if not whole:
                        return False
                    budget -= sent
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self.failed(error.strerror or type(error).__name__)
        return True

    def _handed_over(self) -> bool:
        """Has everything that was sent been taken by the socket?"""
        return True

    def _send_file(self, piece: FilePiece, budget: int) -> int:
        sent = os.sendfile(
            self._socket.fileno(), piece.file.fd, piece.position, min(piece.length, budget)
        )
        if sent == 0:
            raise file_too_short(piece)
        self._file_sent(piece, sent)
        return sent

    def _file_sent(self, piece: FilePiece, sent: int) -> None:
        if sent == piece.length:
            self._ready.popleft()
        else:
            self._ready[0] = FilePiece(piece.file, piece.position + sent, piece.length - sent)
        self._file_bytes -= sent
        self._metrics.sent_bytes += sent
        if self.tap is not None:
            self.tap.sent_file(sent, drained=not self._ready)

    def _send_memory(self) -> tuple[int, bool]:
        pieces, size, flags = self._gather()
        if len(pieces) == 1:
            sent = self._socket.send(pieces[0], flags)
        else:
            sent = self._socket.sendmsg(pieces, (), flags)
        self._memory_bytes -= sent
        self._metrics.sent_bytes += sent
        ready = self._ready
        if sent == size:
            for _ in pieces:
                ready.popleft()
            if self.tap is not None:
                self.tap.sent(pieces, sent, drained=not ready)
            return sent, True
        left = sent
        for piece in pieces:
            if left < len(piece):
                ready[0] = memoryview(piece)[left:]
                break
            left -= len(piece)
            ready.popleft()
        if self.tap is not None:
            self.tap.sent(pieces, sent, drained=False)
        return sent, False

    def _gather(self) -> tuple[list[bytes | bytearray | memoryview], int, int]:
        """The pieces in front that leave in one call, their size, and how to send them."""
        pieces: list[bytes | bytearray | memoryview] = []
        size = 0
        for entry in self._ready:
            if isinstance(entry, _End):
                break
            if isinstance(entry, FilePiece):
                if entry.length > _COPY_BYTES:
                    return pieces, size, _MORE
                entry = self._ready[len(pieces)] = self._read(entry)
            pieces.append(entry)
            size += len(entry)
            if size >= _JOIN_BYTES or len(pieces) == _PIECES_MAX:
                break
        return pieces, size, 0

    def _read(self, piece: FilePiece) -> bytes:
        data = os.pread(piece.file.fd, piece.length, piece.position)
        if len(data) != piece.length:
            raise file_too_short(piece)
        self._file_bytes -= piece.length
        self._memory_bytes += piece.length
        return data


def _nothing() -> None: ...


def _ignore(_reason: str) -> None: ...

"""One Cursus connection: frames to broker calls and back, in the order they came.

Any bytes give answers or a hang-up.  The dialect is found frame by frame, and the answer is in the
dialect of its request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from pentalog.broker.port import Waiting
from pentalog.broker.security import ANONYMOUS
from pentalog.kernels import CursusFrame, read_cursus
from pentalog.model.errors import BrokerError, RecordTooLarge
from pentalog.protocols.cursus import frames, opening, ownership, publishing, records, rights
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.compression import NEAR_BYTES_MAX, open_frame
from pentalog.protocols.cursus.door import open_door
from pentalog.protocols.cursus.errors import REFUSALS, Refused, explain, quoted
from pentalog.protocols.cursus.login import Login
from pentalog.protocols.cursus.lookups import (
    RECOVERED,
    Asking,
    batch_lookups,
    command_lookups,
    must_search,
)
from pentalog.protocols.cursus.messages import Command, parse
from pentalog.protocols.cursus.reads import Reads
from pentalog.protocols.cursus.storing import LARGE_BYTES, Storing
from pentalog.protocols.cursus.verbs import REFUSED, VERBS
from pentalog.session import Context, Replies

if TYPE_CHECKING:
    from pentalog.protocols.cursus.streams import Stream
    from pentalog.protocols.cursus.workroom import Reservation

_log: Final = logging.getLogger(__name__)

_UNREAD_BYTES_MAX: Final = 64 << 10
"""With more than this waiting, a peer does not read its answers."""
_WAIVED_BYTES_MAX: Final = 1 << 20
"""Up to this much waits of answers that need not be read, were they all asked for at once."""
_LONG_BYTES: Final = 64 << 10
"""Commands of more than this have to have memory reserved."""
_COMMAND_SHOWN: Final = 200
_BATCH: Final = Command("", "", {}, (), False)


@runtime_checkable
class Measured(Protocol):
    """Replies that say how much is waiting to leave."""

    @property
    def queued_bytes(self) -> int: ...


class CursusSession:
    """Serves one connection."""

    def __init__(self, context: Context, replies: Replies) -> None:
        self.context = context
        self.replies = replies
        self.door = open_door(context)
        self.login = Login(context, self.hold)
        self.login.await_login(self.hang_up)
        self.reads = Reads(replies, context.runtime)
        self.asking = Asking(context.broker, self.hold)
        self.waits: set[Waiting] = set()
        self.jobs: dict[Call, Callable[[], None]] = {}
        """Long requests that are being served, and how to abandon each."""
        self.wanted = 0
        self.stream: Stream | None = None
        self.structured_errors = False
        self.ended = False
        self.closed = False
        """Nothing leaves any more; after a hang-up (`ended`) earlier answers still do."""
        self._measured = replies if isinstance(replies, Measured) else None
        self._unread_before = False
        self.rooms: dict[Call, Reservation] = {}
        """Memory of commands with long messages that are not answered yet."""
        self._room: Reservation | None = None
        """Memory of the command that is to be offered again."""
        self._storing: Storing | None = None
        """The large frame that is being stored."""
        self._copying: opening.Copying | None = None
        """The compressed frame that is being copied, to be opened."""
        self._holds = 0
        self._release: Callable[[], None] = _nothing
        self._frame_bytes_max = min(frames.FRAME_BYTES_MAX, context.config.frame_bytes_max)

    @property
    def _bytes_max(self) -> int:
        """The largest frame that is accepted now."""
        if self.is_stranger:
            return min(self._frame_bytes_max, frames.STRANGER_BYTES_MAX)
        return self._frame_bytes_max

    @property
    def unread(self) -> bool:
        """The peer does not read what it is answered."""
        if self._measured is None:
            return self.replies.full
        return self._measured.queued_bytes > _UNREAD_BYTES_MAX

    @property
    def waives(self) -> bool:
        """Answers that need not be read are not worth keeping for this peer any more.

        What lies here at the end of a read the peer's socket did not take.  While a read is
        served nothing leaves, so that many small requests at once say nothing about the peer.
        """
        if self._unread_before or self._measured is None:
            return self.unread
        return self._measured.queued_bytes > _WAIVED_BYTES_MAX

    def receive(self, data: memoryview) -> int:
        used, size = 0, len(data)
        self.wanted = 0
        self._unread_before = self.unread
        while not self.ended:
            if size - used < frames.HEAD_BYTES:
                break
            length = frames.length_at(data, used)
            if length > self._bytes_max:
                self._hang_up_on(length)
                break
            end = used + frames.HEAD_BYTES + length
            if end > size:
                self.wanted = end - used
                break
            if self.replies.full:
                break
            self.login.refresh()
            if not self._serve(data[used + frames.HEAD_BYTES : end]):
                break  # it comes again when the broker knows what it asks for
            self.context.metrics.requests += 1
            used = end
        return size if self.ended else used

    def close(self) -> None:
        self.ended = self.closed = True
        self.login.close()
        if self._storing is not None:
            self._storing.abandon()
            self._storing = None
        if self._copying is not None:
            self._copying.abandon()
            self._copying = None
        if self.stream is not None:
            self.stream.drop()
        for room in (*self.rooms.values(), *filter(None, [self._room])):
            room.release()
        self.rooms.clear()
        self._room = None
        for abandon in self.jobs.values():
            abandon()
        self.jobs.clear()
        waits = list(self.waits)
        self.waits.clear()
        for waiting in waits:
            waiting.cancel()

    def hang_up(self) -> None:
        self.ended = True
        self.replies.hang_up()

    @property
    def is_stranger(self) -> bool:
        """The listener demands a login, and the peer has not logged in."""
        context = self.context
        return "auth" in context.demands and context.access.who == ANONYMOUS

    def hold(self) -> Callable[[], None]:
        """Serve nothing until the returned function is called; holds may overlap."""
        if not self._holds:
            self._release = self.replies.hold()
        self._holds += 1
        return self._let_go

    def _let_go(self) -> None:
        self._holds -= 1
        if not self._holds:
            self._release()

    def _serve(self, data: memoryview) -> bool:
        """Serve a frame; False if it is to be offered again: something must be known first."""
        if self._storing is not None:
            return self._store_on(self._storing, data)
        if self._copying is not None:
            return self._copy_on(self._copying, data)
        call = Call(self, _BATCH)
        try:
            if not data:
                raise Refused('decode_failed reason="data too short"')
            if frames.is_batch(data):
                if self.is_stranger:
                    self.refuse_batch(call, Refused("authentication_required command=BATCH"))
                    return True
                read = frames.read_batch(data)
                if read is not None:
                    return self._serve_batch(call, data, read)
            return self._serve_opened(call, data)
        except REFUSALS as refusal:
            call.refuse(refusal)
            return True

    def _serve_opened(self, call: Call, data: memoryview) -> bool:
        algorithm = self.door.registry.recognise(data)
        if algorithm is None and frames.is_batch(data):
            return self._serve_batch(call, data, read_cursus(data, 0, len(data)))
        if algorithm is None:
            return self._serve_text(data)
        stranger = self.is_stranger
        try:
            if len(data) > NEAR_BYTES_MAX:
                raise RecordTooLarge(f"a compressed frame of {len(data)} bytes")
            plain = open_frame(algorithm, data, bytes_max=NEAR_BYTES_MAX)
            frames.check_opened(plain, self.door.registry)
        except RecordTooLarge as refusal:
            if stranger:
                self.refuse_batch(call, refusal)
            else:
                self._copying = opening.Copying(self, algorithm, len(data))
                return self._copy_on(self._copying, data)
            return True
        except REFUSALS as refusal:
            # Clients compress nothing but batches.
            self.refuse_batch(call, refusal)
            return True
        return self.serve_plain(call, plain)

    def serve_plain(self, call: Call, plain: bytes) -> bool:
        """Serve what a compressed frame held; False if it is to be offered again."""
        view = memoryview(plain)
        if not frames.is_batch(view):
            call.leave_place()  # a command has a call of its own
            room, call.room = call.room, None
            try:
                return self._serve_text(view, room)
            except REFUSALS as refusal:
                call.refuse(refusal)
                return True
        if self.is_stranger:
            self.refuse_batch(call, Refused("authentication_required command=BATCH"))
            return True
        return self._serve_batch(call, view, read_cursus(view, 0, len(view)))

    def _serve_batch(self, call: Call, data: memoryview, read: CursusFrame) -> bool:
        if self.stream is not None:
            # An answer between pushed batches would be taken for one of them.
            self.stream.end("error")
            return True
        if not self.asking.current:
            try:
                if self.asking.must_wait(lambda: batch_lookups(call.broker, read)):
                    return False
            except REFUSALS as refusal:
                call.refused = lambda text: records.refusal(read, text)
                call.refuse(refusal)
                return True
        self._storing = publishing.serve_batch(call, data, read)
        return self._storing is None or self._store_on(self._storing, data)

    def _store_on(self, storing: Storing, data: memoryview) -> bool:
        """Store a part of a large frame; False while there are more."""
        if storing.step(data):
            self._storing = None
            return True
        if storing.room.granted:
            # In a later turn: others are served between the parts.
            self.context.runtime.soon(self.hold())
        return False

    def _copy_on(self, copying: opening.Copying, data: memoryview) -> bool:
        """Copy a part of a compressed frame; once it is whole, open it on another thread."""
        if not copying.step(data):
            if copying.room.granted:
                # In a later turn: others are served between the parts.
                self.context.runtime.soon(self.hold())
            return False
        self._copying = None
        opening.Aside(self, Call(self, _BATCH), copying)
        return True

    def take_storing(self) -> Storing | None:
        """Return the large frame that is being stored, for a caller that continues."""
        storing, self._storing = self._storing, None
        return storing

    def refuse_batch(self, call: Call, refusal: Exception) -> None:
        call.refused = lambda text: records.refusal(None, text)
        if isinstance(refusal, BrokerError):
            refusal = Refused(f"batch_decode_failed reason={quoted(explain(refusal))}")
        call.refuse(refusal)

    def _serve_text(self, data: memoryview, room: Reservation | None = None) -> bool:
        """Serve a command; one with a long message keeps memory until it is answered."""
        if room is None and len(data) > _LONG_BYTES:
            room = self._reserve(len(data))
            if not room.granted:
                return False
        try:
            command = parse(frames.text_of(data))
        except REFUSALS:
            if room is not None:
                room.release()
            raise
        call = Call(self, command)
        call.refused = REFUSED.get(command.verb)
        call.room = room
        served = True
        if self.stream is None or command.verb == "STREAM":
            if len(data) > LARGE_BYTES:
                # In another turn than the one that copied its message.
                call.later(partial(self._serve_later, call))
            else:
                served = self._serve_parsed(call)
        if room is None:
            return served
        if not served:
            self._room = room
        elif call.waits:
            self.rooms[call] = room
        else:
            room.release()
        return served

    def _reserve(self, size: int) -> Reservation:
        """Return the memory that this frame has, or waits for."""
        room, self._room = self._room, None
        if room is None:
            owner = self.context.access.owner
            room = self.door.workroom.reserve(owner, size, self.hold())
        if not room.granted:
            self._room = room
        return room

    def _serve_parsed(self, call: Call) -> bool:
        command = call.command
        try:
            if command.verb not in VERBS:
                raise Refused(f"unknown_command command={quoted(command.text[:_COMMAND_SHOWN])}")
            claim = self.login.claim(call)
            if claim is not None:
                self.login.prove(call, claim, partial(self._serve_proven, call))
                return True
            return self._serve_command(call)
        except REFUSALS as refusal:
            call.refuse(refusal)
        return True

    def _serve_later(self, call: Call) -> None:
        """Serve a long command; other frames wait until it is served."""
        self._serve_until_done(call, self._serve_parsed)

    def _serve_proven(self, call: Call) -> None:
        """Serve a command whose credentials were right; other frames wait until it is served."""
        self._serve_until_done(call, self._serve_command)

    def _serve_until_done(self, call: Call, serve: Callable[[Call], bool]) -> None:
        if serve(call):
            return
        call.keep_place()
        release = self.hold()

        def served() -> None:
            release()
            if not self.ended:
                call.attempt(partial(self._serve_until_done, call, serve))

        self.asking.then(partial(self.context.runtime.soon, served))

    def _serve_command(self, call: Call) -> bool:
        verb = call.command.verb
        rights.check_login(call, verb)
        asking = self.asking
        asks = not asking.current or asking.began or verb in RECOVERED or must_search(call)
        if asks and asking.must_wait(lambda: command_lookups(call, partial(rights.allowed, call))):
            return False
        rights.check(call)
        ownership.check(call)
        VERBS[verb](call)
        return True

    def _hang_up_on(self, length: int) -> None:
        _log.info(
            "%s: a frame of %d bytes; accepted are %d; the connection is closed",
            self.context.peer,
            length,
            self._bytes_max,
        )
        Call(self, _BATCH).refuse(Refused(f"message_too_large size={length} max={self._bytes_max}"))
        self.hang_up()


def _nothing() -> None: ...

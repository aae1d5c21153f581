"""One Cursus connection: frames to broker calls and back, in the order they came.

Any bytes give answers or a hang-up.  The dialect is found frame by frame, and the answer is in the
dialect of its request.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from pentalog.broker.port import Waiting
from pentalog.kernels import CursusFrame, read_cursus
from pentalog.model.errors import BrokerError
from pentalog.protocols.cursus import frames, ownership, publishing, records, rights
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.door import door_of
from pentalog.protocols.cursus.errors import REFUSALS, Refused, explain, quoted
from pentalog.protocols.cursus.login import Login
from pentalog.protocols.cursus.lookups import RECOVERED, Asking, batch_lookups, command_lookups
from pentalog.protocols.cursus.messages import Command, parse
from pentalog.protocols.cursus.reads import Reads
from pentalog.protocols.cursus.verbs import REFUSED, VERBS
from pentalog.session import Context, Replies

if TYPE_CHECKING:
    from pentalog.protocols.cursus.streams import Stream

_log: Final = logging.getLogger(__name__)

_UNREAD_BYTES_MAX: Final = 64 << 10
"""With more than this waiting, a peer does not read its answers."""
_WAIVED_BYTES_MAX: Final = 1 << 20
"""Up to this much waits of answers that need not be read, were they all asked for at once."""
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
        self.door = door_of(context.broker)
        self.login = Login(context, replies)
        self.login.await_login(self.hang_up)
        self.reads = Reads(replies)
        self._asking = Asking(context.broker, replies)
        self.waits: set[Waiting] = set()
        self.wanted = 0
        self.stream: Stream | None = None
        self.structured_errors = False
        self.ended = False
        self._measured = replies if isinstance(replies, Measured) else None
        self._unread_before = False
        self._frame_bytes_max = min(frames.FRAME_BYTES_MAX, context.config.frame_bytes_max)

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
            if length > self._frame_bytes_max:
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
        self.ended = True
        self.login.close()
        if self.stream is not None:
            self.stream.drop()
        waits = list(self.waits)
        self.waits.clear()
        for waiting in waits:
            waiting.cancel()

    def hang_up(self) -> None:
        self.ended = True
        self.replies.hang_up()

    def _serve(self, data: memoryview) -> bool:
        """Serve a frame; False if something must be known first."""
        call = Call(self, _BATCH)
        try:
            if not data:
                raise Refused('decode_failed reason="data too short"')
            if frames.is_batch(data):
                read = frames.read_batch(data)
                if read is not None:
                    return self._serve_batch(call, data, read)
            return self._serve_opened(call, data)
        except REFUSALS as refusal:
            call.refuse(refusal)
            return True

    def _serve_opened(self, call: Call, data: memoryview) -> bool:
        try:
            plain = frames.opened(data, self.door.registry)
        except REFUSALS as refusal:
            # Clients compress nothing but batches.
            self._refuse_batch(call, refusal)
            return True
        if plain is not None:
            data = memoryview(plain)
        if frames.is_batch(data):
            return self._serve_batch(call, data, read_cursus(data, 0, len(data)))
        return self._serve_text(data)

    def _serve_batch(self, call: Call, data: memoryview, read: CursusFrame) -> bool:
        if self.stream is not None:
            # An answer between pushed batches would be taken for one of them.
            self.stream.end("error")
            return True
        if not self._asking.current:
            try:
                if self._asking.must_wait(lambda: batch_lookups(call.broker, read)):
                    return False
            except REFUSALS as refusal:
                call.refused = lambda text: records.refusal(read, text)
                call.refuse(refusal)
                return True
        publishing.serve_batch(call, data, read)
        return True

    def _refuse_batch(self, call: Call, refusal: Exception) -> None:
        call.refused = lambda text: records.refusal(None, text)
        if isinstance(refusal, BrokerError):
            refusal = Refused(f"batch_decode_failed reason={quoted(explain(refusal))}")
        call.refuse(refusal)

    def _serve_text(self, data: memoryview) -> bool:
        command = parse(frames.text_of(data))
        if self.stream is not None and command.verb != "STREAM":
            return True
        call = Call(self, command)
        call.refused = REFUSED.get(command.verb)
        serve = VERBS.get(command.verb)
        try:
            if serve is None:
                raise Refused(f"unknown_command command={quoted(command.text[:_COMMAND_SHOWN])}")
            asks = not self._asking.current or command.verb in RECOVERED
            if asks and self._asking.must_wait(
                lambda: command_lookups(call, partial(rights.allowed, call))
            ):
                return False
            ownership.check(call)
            self.login.admit(call, _serve_command)
        except REFUSALS as refusal:
            call.refuse(refusal)
        return True

    def _hang_up_on(self, length: int) -> None:
        _log.info(
            "%s: a frame of %d bytes; accepted are %d; the connection is closed",
            self.context.peer,
            length,
            self._frame_bytes_max,
        )
        Call(self, _BATCH).refuse(
            Refused(f"message_too_large size={length} max={self._frame_bytes_max}")
        )
        self.hang_up()


def _serve_command(call: Call) -> None:
    rights.check(call)
    VERBS[call.command.verb](call)

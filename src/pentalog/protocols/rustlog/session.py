"""One RustLog connection: frames of both dialects to broker calls and back, in order."""

from __future__ import annotations

import logging
from typing import Final

from pentalog.model.errors import BrokerError
from pentalog.protocols.rustlog import frames, messages, rights
from pentalog.protocols.rustlog.door import door_of
from pentalog.protocols.rustlog.errors import Invalid, NotJson
from pentalog.protocols.rustlog.frames import (
    FRAME_BYTES_MAX,
    LENGTH,
    OBJECT,
    PRODUCE,
    Undecodable,
    decode_produce,
)
from pentalog.protocols.rustlog.line import Line
from pentalog.protocols.rustlog.lookups import Asking
from pentalog.protocols.rustlog.messages import LARGE_BYTES, Produce, Request
from pentalog.protocols.rustlog.records import Writing, answer_empty
from pentalog.protocols.rustlog.replies import JSON, PACKED, REFUSALS, Dialect
from pentalog.protocols.rustlog.serving import serve
from pentalog.session import Context, Replies

_log: Final = logging.getLogger(__name__)

_TURN_WORK: Final = 256 << 10
"""Answers made by hand in one turn: bytes, and a little for each."""
_PAUSE_MS: Final = 1


class RustLogSession:
    """Serves one connection; each frame is answered in the dialect it came in."""

    def __init__(self, context: Context, replies: Replies) -> None:
        self.wanted = 0
        self._context = context
        self._replies = replies
        self._door = door_of(context.broker)
        self._door.connections += 1
        self._ended = False
        self._dialect: Dialect = PACKED
        self._frame_bytes_max = min(FRAME_BYTES_MAX, context.config.frame_bytes_max)
        self._line = Line(context, self._door, replies)
        self._asking = Asking(context.broker, replies)
        self._writing = Writing(self._line, self._frame_bytes_max)
        self._looked_through = False
        """The next frame is large and in JSON; it was looked through in an earlier turn."""
        self._flaw: Invalid | NotJson | None = None
        """What was found wrong with it then."""

    def receive(self, data: memoryview) -> int:
        used = self._serve(data)
        if self._writing.large and not self._ended:
            self._flush_later()
        else:
            self._writing.flush()
        self._door.received_bytes += used
        return len(data) if self._ended else used

    def _flush_later(self) -> None:
        """Append what was gathered in a turn of its own; nothing is served before that."""
        release = self._replies.hold()

        def flush() -> None:
            release()
            self._writing.flush()

        self._context.runtime.soon(flush)

    def close(self) -> None:
        self._ended = True
        if not self._line.closed:
            self._line.close()
            self._door.connections -= 1

    def _serve(self, data: memoryview) -> int:
        used, end = 0, len(data)
        self.wanted = 0
        self._line.work = 0
        while end - used >= LENGTH.size and not self._ended:
            if self._replies.full:
                self._door.stalls += 1
                break
            if self._writing.large:
                break
            if self._line.busy or self._line.work > _TURN_WORK:
                # Served again in a moment, when others have had their turn.
                self._replies.mute(_PAUSE_MS)
                break
            (size,) = LENGTH.unpack_from(data, used)
            if not 0 < size <= self._frame_bytes_max:
                self._refuse_frame(size)
                break
            behind = used + LENGTH.size + size
            if behind > end:
                self.wanted = LENGTH.size + size
                break
            first = data[used + LENGTH.size]
            if first == PRODUCE:
                if not self._writing.flush():
                    break
                self._dialect = PACKED
                taken = self._writing.packed_run(data, used, end)
                if taken > used:
                    used = taken
                    self._asking.forget()
                    continue
            payload = data[used + LENGTH.size : behind]
            if size > LARGE_BYTES and self._must_look_through(payload, first):
                break
            if not self._asking.current:
                known = self._look_up(payload, first)
                if known is None:
                    break
                if not known:
                    used = behind
                    self._looked_through, self._flaw = False, None
                    continue
            if not self._serve_frame(payload, first):
                break
            used = behind
            self._looked_through, self._flaw = False, None
        return used

    def _must_look_through(self, payload: memoryview, first: int) -> bool:
        """Look through a large frame in JSON; True if it is to be offered again, to be decoded."""
        if self._looked_through or not (first == OBJECT or frames.is_json(payload)):
            return False
        try:
            messages.look_through(payload)
        except (Invalid, NotJson) as flaw:
            self._flaw = flaw
        self._looked_through = True
        self._context.runtime.soon(self._replies.hold())
        return True

    def _decode_json(self, payload: memoryview) -> Request:
        if self._flaw is not None:
            raise self._flaw
        return messages.decode(payload, looked_through=self._looked_through)

    def _look_up(self, payload: memoryview, first: int) -> bool | None:
        """Does the broker know what this asks for?  None: it will when the frame comes again.

        False if it cannot know; that is answered already.
        """
        try:
            request = self._decode(payload, first)
        except (Invalid, NotJson, Undecodable):
            return True  # and is refused for that
        try:
            return None if self._asking.must_wait(request) else True
        except BrokerError as refusal:
            if not self._writing.flush():
                return None
            self._line.refuse(self._dialect, request, refusal, None)
            return False

    def _decode(self, payload: memoryview, first: int) -> Request:
        if first == OBJECT or frames.is_json(payload):
            self._dialect = JSON
            return self._decode_json(payload)
        self._dialect = PACKED
        return decode_produce(payload)[0] if first == PRODUCE else frames.decode(payload)

    def _serve_frame(self, payload: memoryview, first: int) -> bool:
        """Serve a frame; False if it is to be offered again after those before it."""
        if first == OBJECT or frames.is_json(payload):
            self._dialect = JSON
            served = self._serve_json(payload)
            self._context.metrics.requests += served
            return served
        if not self._writing.flush():
            return False
        self._context.metrics.requests += 1
        self._dialect = PACKED
        try:
            if first == PRODUCE:
                self._serve_odd_produce(payload)
            else:
                serve(self._line, PACKED, frames.decode(payload))
        except Undecodable as flaw:
            self._line.refuse(PACKED, None, flaw, None)
        return True

    def _serve_json(self, payload: memoryview) -> bool:
        line = self._line
        try:
            request = self._decode_json(payload)
        except Invalid as flaw:
            if not self._writing.flush():
                return False
            line.refuse(JSON, None, flaw, None)
            return True
        except NotJson as flaw:
            if not self._writing.flush():
                return False
            line.refuse(JSON, None, flaw, None)
            self._end(f"a frame that is no JSON: {flaw}")
            return True
        if not isinstance(request, Produce):
            if not self._writing.flush():
                return False
            serve(line, JSON, request)
            return True
        try:
            return self._writing.gather(request, len(payload))
        except REFUSALS as refusal:
            if not self._writing.flush():
                return False
            line.refuse(JSON, request, refusal, None)
        return True

    def _serve_odd_produce(self, payload: memoryview) -> None:
        """One that the fast path leaves: for what is not there, or of no records."""
        line = self._line
        request, count = frames.decode_produce(payload)
        try:
            rights.check(self._context.access, request)
            at = self._door.routes.find(request.topic, request.partition).at
        except REFUSALS as refusal:
            line.refuse(PACKED, request, refusal, None)
            return
        assert count == 0, "what has records and may be written is taken by the fast path"
        answer_empty(line, PACKED, request, at)

    def _refuse_frame(self, size: int) -> None:
        if not self._writing.flush():
            return  # it is offered again after those before it
        self._context.metrics.request_errors += 1
        self._line.send(self._dialect.bad_frame(size, self._frame_bytes_max))
        self._end(f"a frame of {size} bytes; 1 to {self._frame_bytes_max} are accepted")

    def _end(self, why: str) -> None:
        _log.info("%s: %s; the connection is closed", self._context.peer, why)
        self._ended = True
        self._replies.hang_up()

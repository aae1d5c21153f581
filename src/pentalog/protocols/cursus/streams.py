"""STREAM: records pushed to one connection as they come, until something ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from pentalog.broker.port import Opened, Waiting
from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError, OffsetOutOfRange
from pentalog.model.later import Later
from pentalog.model.types import Offset
from pentalog.protocols.cursus.calls import Call, raise_error
from pentalog.protocols.cursus.errors import REFUSALS, Refused
from pentalog.protocols.cursus.frames import KEEP_ALIVE, framed
from pentalog.protocols.cursus.messages import encoded
from pentalog.protocols.cursus.reading import (
    Reading,
    check_range,
    group_of,
    out_of_range,
    reading_of,
)

if TYPE_CHECKING:
    from pentalog.protocols.cursus.session import CursusSession
    from pentalog.runtime import Timer

KEEP_ALIVE_MS: Final = 5_000
_WAIT_MS: Final = 3_600_000


def stream(call: Call) -> None:
    """Begin to push; the connection is the stream's from now on."""
    command = call.command
    needed = ("topic", "partition") if command.document else ("topic", "partition", "group")
    if any(not command.get(name) for name in needed):
        raise Refused("invalid_stream_syntax")
    reading = reading_of(call)
    if not reading.ready:
        # Requests after a STREAM are not answered, so none is served before it has begun.
        release = call.session.hold()
        reading.then(lambda _: release())
    call.after(reading, partial(_begin, call))


def _begin(call: Call, reading: Reading) -> None:
    session = call.session
    if session.ended:
        call.leave_place()
        return
    check_range(reading, call.broker.log.marks(reading.at))
    call.leave_place()
    if session.stream is not None:
        session.stream.drop()
    # Readers of the document's dialect belong to no group, and none replaces another.
    group = "" if call.command.document else group_of(call.command)
    session.stream = Stream(session, reading, group)
    session.stream.start()


class Stream:
    def __init__(self, session: CursusSession, reading: Reading, group: str) -> None:
        self._session = session
        self._reading = reading
        self._key = (reading.at, group)
        self._group = group
        self._who = session.context.access.who
        self._over = False
        self._waiting: Waiting | None = None
        self._beat: Timer | None = None

    def start(self) -> None:
        if self._group:
            before = self._session.door.streams.pop(self._key, None)
            if before is not None:
                before.end("replaced")
            self._session.door.streams[self._key] = self
        self._arm()
        self._push()

    def drop(self) -> None:
        """Stop without a word: the connection is gone, or restarts the stream."""
        self._over = True
        if self._session.stream is self:
            self._session.stream = None
        if self._session.door.streams.get(self._key) is self:
            del self._session.door.streams[self._key]
        if self._waiting is not None:
            self._session.waits.discard(self._waiting)
            self._waiting.cancel()
        if self._beat is not None:
            self._beat.cancel()

    def end(self, reason: str, more: str = "") -> None:
        """Say why, and hang up."""
        if self._over:
            return
        text = f"STREAM_CONTROL type=CLOSE reason={reason} offset={self._reading.offset}{more}"
        self._session.replies.send(framed(encoded(text)))
        self.drop()
        self._session.hang_up()

    def _arm(self) -> None:
        self._beat = self._session.context.runtime.after(KEEP_ALIVE_MS, self._keep_alive)

    def _keep_alive(self) -> None:
        if self._over:
            return
        if not self._may_read():
            self.end("not_authorized")
        else:
            if not self._session.unread:
                self._session.replies.send(KEEP_ALIVE)
            self._arm()

    def _may_read(self) -> bool:
        """Is it still the connection of who began the stream, and may he still read?"""
        session = self._session
        session.login.refresh()
        access = session.context.access
        topic = self._reading.at.topic
        return access.who == self._who and access.allows(Operation.READ, Kind.TOPIC, topic)

    def _push(self) -> None:
        """Send what is there; go on when there is room, or when there is more."""
        if self._over:
            return
        replies = self._session.replies
        if replies.full:
            replies.when_room(self._push)
        else:
            replies.reserve(self._reading.bytes_max).then(self._reserved)

    def _pushing(self) -> Iterator[None]:
        self._push()
        yield

    def _reserved(self, reserved: Later[Callable[[], None]]) -> None:
        if self._over:
            reserved.value()
        elif not self._may_read():
            self.end("not_authorized")
            reserved.value()
        else:
            self._read(reserved.value)

    def _read(self, release: Callable[[], None]) -> None:
        reading = self._reading
        log = self._session.context.broker.log
        try:
            marks = log.marks(reading.at)
            if reading.offset < marks.start:
                self._end_out_of_range()
            elif reading.offset < marks.at(reading.horizon):
                opened = log.open(
                    reading.at,
                    reading.offset,
                    bytes_max=reading.bytes_max,
                    horizon=reading.horizon,
                )
                opened.then(partial(self._opened, marks.at(reading.horizon)))
                opened.then(lambda _: release())
                return
            else:
                self._wait()
        except BrokerError:
            self.end("removed")
        release()

    def _end_out_of_range(self) -> None:
        reading = self._reading
        try:
            marks = self._session.context.broker.log.marks(reading.at)
        except BrokerError:
            self.end("removed")
            return
        more = out_of_range(reading, marks).partition(" ")[2]
        self.end("offset_out_of_range", " " + more)

    def _opened(self, limit: Offset, opened: Later[Opened]) -> None:
        """Send what was opened; `limit` is the mark that was to be read up to."""
        if self._over:
            return
        reading = self._reading
        try:
            page = reading.page(opened.value, self._session.door.note_skipped)
            self._reading = reading.behind(page, opened.value)
            if self._reading.offset <= reading.offset:
                # All that is left before the mark is damaged: asking again would never end.
                self._reading = reading._replace(offset=limit)
        except OffsetOutOfRange:
            self._end_out_of_range()  # gone since the last look
            return
        except REFUSALS:
            self.end("error")
            return
        if page.records:
            self._session.context.metrics.sent_records += page.records
            self._session.replies.send(page.frame)
        # In a later turn, so that one stream that catches up does not hold up the others.
        self._session.replies.when_room(self._push)

    def _wait(self) -> None:
        runtime = self._session.context.runtime
        start_s = runtime.monotonic()
        reading = self._reading
        waiting = self._session.context.broker.log.wait(
            {reading.at: reading.offset}, bytes_min=1, horizon=reading.horizon, timeout_ms=_WAIT_MS
        )

        def waited(found: Later[bool]) -> None:
            self._session.waits.discard(waiting)
            self._waiting = None
            if self._over:
                return
            if not found.value and runtime.monotonic() - start_s < _WAIT_MS / 2000:
                self.end("stopped")  # the broker stops, and nobody waits any more
            else:
                # Thousands may have waited for the same record.
                session = self._session
                session.context.slices.run(self._pushing(), raise_error, unconditional=True)

        self._waiting = waiting
        self._session.waits.add(waiting)
        waiting.then(waited)

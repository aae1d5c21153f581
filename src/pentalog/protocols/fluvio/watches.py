"""Watches: a snapshot at once, then every change, as fast as the connection takes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pentalog.protocols.fluvio import frames, objects, rights
from pentalog.protocols.fluvio.codec import Writer
from pentalog.protocols.fluvio.door import Objects, Steps
from pentalog.protocols.fluvio.session import Call, FluvioSession

WATCHES_MAX: Final = 100
"""Per connection; a client opens six."""


class Watch:
    """One watch of one connection."""

    def __init__(self, call: Call, label: str, *, summary: bool) -> None:
        self.label = label
        self._session: FluvioSession = call.session
        self._correlation_id = call.head.correlation_id
        self._version = call.version
        self._summary = summary
        self._seen: Objects = {}
        self._waiting = False
        self._telling = False
        self._changed = False

    def opening(self) -> Iterator[None]:
        """Send everything there is, then be told of changes."""
        session, door = self._session, self._session.door
        self._seen = yield from self._visible()
        body = yield from door.snapshot(
            self.label, self._seen, self._version, summary=self._summary
        )
        self._send(body)
        door.watch(self)
        if not session.ended:
            # Something may have changed meanwhile.
            yield from self.telling()

    def telling(self) -> Iterator[None]:
        self._changed = True
        if self._telling:
            return
        self._telling = True
        try:
            while self._changed and self._has_room():
                self._changed = False
                yield from self._tell()
        finally:
            self._telling = False

    def _has_room(self) -> bool:
        session = self._session
        if self._waiting or session.ended:
            return False
        if session.replies.full:
            # A slow reader gets what has come together until it has room, not every change.
            self._waiting = True
            session.replies.when_room(self._go_on)
        return not self._waiting

    def _tell(self) -> Iterator[None]:
        door = self._session.door
        seen = self._seen
        current = yield from self._visible()
        own = self.label == objects.SPU or self._session.context.access.guarded
        if own and seen == current:
            return
        body = yield from door.difference(
            self.label, seen, current, self._version, summary=self._summary
        )
        if body is not None and not self._session.ended:
            self._seen = current
            self._send(body)

    def _visible(self) -> Steps[Objects]:
        session = self._session
        if self.label == objects.SPU:
            return session.door.spus.seen_by(session.context)
        found = session.door.seen(self.label)
        return (yield from rights.visible(session.context.access, self.label, found))

    def _go_on(self) -> None:
        self._waiting = False
        self._session.door.tell(self)

    def _send(self, body: Writer) -> None:
        head = Writer(self._version).text(self.label).u32(body.size)
        self._session.send(*frames.answer_pieces(self._correlation_id, head, body))

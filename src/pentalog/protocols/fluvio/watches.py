"""Watches: a snapshot at once, then every change, as fast as the connection takes them."""

from __future__ import annotations

from typing import Final

from pentalog.protocols.fluvio import frames, objects, rights
from pentalog.protocols.fluvio.codec import Writer
from pentalog.protocols.fluvio.door import Objects
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
        self._seen = self._visible()
        self._waiting = False

    def open(self) -> None:
        door = self._session.door
        self._send(door.snapshot(self.label, self._seen, self._version, summary=self._summary))
        door.watch(self)

    def tell(self) -> None:
        if self._waiting or self._session.ended:
            return
        if self._session.replies.full:
            # A slow reader gets what has come together until it has room, not every change.
            self._waiting = True
            self._session.replies.when_room(self._go_on)
            return
        door = self._session.door
        seen, current = self._seen, self._visible()
        own = self.label == objects.SPU or self._session.context.access.guarded
        if own and seen == current:
            return
        body = door.difference(self.label, seen, current, self._version, summary=self._summary)
        if body is not None:
            self._seen = current
            self._send(body)

    def _visible(self) -> Objects:
        session = self._session
        if self.label == objects.SPU:
            return session.door.spus.seen_by(session.context)
        return rights.visible(session.context.access, self.label, session.door.seen(self.label))

    def _go_on(self) -> None:
        self._waiting = False
        self.tell()

    def _send(self, body: bytearray) -> None:
        wrapped = Writer(self._version).text(self.label).bytes_(body)
        self._session.send(frames.answer(self._correlation_id, wrapped))

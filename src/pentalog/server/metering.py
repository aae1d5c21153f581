"""Quotas at doors whose protocol does not know them: what a peer uses is counted here.

What comes in counts as written, what goes out as read, the time it takes as work.  A peer over its
quota is not read from, and not pushed to, for as long as it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pentalog.broker.operation import Meter
from pentalog.model.errors import Overloaded
from pentalog.model.types import FilePiece, Piece
from pentalog.session import Context, Endpoint, Place, Replies, Session


def metered(endpoint: Endpoint) -> Endpoint:
    """The same endpoint, with what its connections use counted."""

    def open_metered(context: Context, replies: Replies) -> Session:
        allowance = Allowance(context, replies, endpoint.name)
        counted = CountedReplies(replies, allowance)
        opened = endpoint.open(replace(context, usage=allowance), counted)
        return MeteredSession(opened, allowance)

    return replace(endpoint, open=open_metered)


class Allowance:
    """What one connection may use; the name of its door stands for a client's that has none."""

    __slots__ = (
        "_access",
        "_client",
        "_door",
        "_known",
        "_meter",
        "_quotas",
        "_replies",
        "_runtime",
        "_totals",
        "_user",
        "_version",
        "serving",
    )

    def __init__(self, context: Context, replies: Replies, door: str) -> None:
        self._access = context.access
        self._client = door
        self._door = door
        self._known = context.known
        self._quotas = context.broker.quotas
        self._replies = replies
        self._runtime = context.runtime
        self._totals = context.totals
        self._meter: Meter | None = None
        self._user = ""
        self._version = -1
        self.serving = False
        """Something that was received is served, and not counted yet."""

    @property
    def active(self) -> bool:
        return self._quotas.active

    def now_s(self) -> float:
        return self._runtime.monotonic()

    def received(self, size_bytes: int, started_s: float) -> None:
        meter = self._current()
        meter.worked(self._runtime.monotonic() - started_s)
        delay_ms = meter.work_delay_ms
        if size_bytes:
            delay_ms = max(delay_ms, meter.written(size_bytes))
        if delay_ms:
            self._mute(delay_ms)

    def sent(self, pieces: tuple[Piece, ...]) -> None:
        size_bytes = sum(
            piece.length if isinstance(piece, FilePiece) else len(piece) for piece in pieces
        )
        delay_ms = self._current().sent(size_bytes) if size_bytes else 0
        if delay_ms:
            self._mute(delay_ms)

    def check_change(self) -> None:
        delay_ms = self._current().change_delay_ms if self.active else 0
        if delay_ms:
            raise Overloaded(
                f"the quota of partitions made and deleted is used up: try again in {delay_ms} ms"
            )

    def changed(self, partitions: int) -> None:
        if self.active:
            self._current().changed(partitions)

    def write_delay_ms(self, size_bytes: int) -> int:
        if not self.active:
            return 0
        # What is answered after its read was served has been counted with it.
        return self._current().write_delay_ms(size_bytes if self.serving else 0)

    def read_delay_ms(self, size_bytes: int) -> int:
        return self._current().read_delay_ms(size_bytes) if self.active else 0

    def _mute(self, delay_ms: int) -> None:
        self._totals.throttles += 1
        self._replies.mute(delay_ms)

    def _current(self) -> Meter:
        user, client = self._access.who.name, self._known.client or self._door
        if (
            self._meter is None
            or self._version != self._quotas.version
            or self._user != user
            or self._client != client
        ):
            self._meter = self._quotas.meter(user, client)
            self._version = self._quotas.version
            self._user = user
            self._client = client
        return self._meter


class MeteredSession:
    __slots__ = ("_allowance", "inner")

    def __init__(self, session: Session, allowance: Allowance) -> None:
        self.inner = session
        """The door's own."""
        self._allowance = allowance

    def receive(self, data: memoryview) -> int:
        allowance = self._allowance
        if not allowance.active:
            return self.inner.receive(data)
        started_s = allowance.now_s()
        allowance.serving = True
        try:
            used = self.inner.receive(data)
        finally:
            allowance.serving = False
        allowance.received(used, started_s)
        return used

    @property
    def wanted(self) -> int:
        return self.inner.wanted

    def close(self) -> None:
        self.inner.close()


class CountedReplies:
    """The way out, with what leaves counted."""

    __slots__ = ("_allowance", "_replies", "hang_up", "hold", "mute", "reserve", "when_room")

    def __init__(self, replies: Replies, allowance: Allowance) -> None:
        self._replies = replies
        self._allowance = allowance
        self.hang_up = replies.hang_up
        self.hold: Callable[[], Callable[[], None]] = replies.hold
        self.mute = replies.mute
        self.reserve = replies.reserve
        self.when_room = replies.when_room

    @property
    def full(self) -> bool:
        return self._replies.full

    @property
    def queued_bytes(self) -> int:
        return getattr(self._replies, "queued_bytes", 0)

    def send(self, *pieces: Piece) -> None:
        if self._allowance.active:
            self._allowance.sent(pieces)
        self._replies.send(*pieces)

    def place(self) -> Place:
        place = self._replies.place()
        return _CountedPlace(place, self._allowance) if self._allowance.active else place


class _CountedPlace:
    __slots__ = ("_allowance", "_place")

    def __init__(self, place: Place, allowance: Allowance) -> None:
        self._place = place
        self._allowance = allowance

    def fill(self, *pieces: Piece) -> None:
        self._allowance.sent(pieces)
        self._place.fill(*pieces)

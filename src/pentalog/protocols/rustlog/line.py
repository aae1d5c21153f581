"""The way out of one RustLog connection, as what serves its requests sees it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

from pentalog.broker.port import Topic
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.model.types import Appended, Offset, Partition
from pentalog.protocols.rustlog import rights
from pentalog.protocols.rustlog.door import Door
from pentalog.protocols.rustlog.messages import Request
from pentalog.protocols.rustlog.replies import Dialect
from pentalog.session import Context, Place, Replies

T = TypeVar("T")

_FRAME_WORK: Final = 64


class Line:
    """Counts what leaves, and knows which writes of this connection are not safe yet."""

    __slots__ = ("busy", "closed", "context", "door", "replies", "unsettled", "work")

    def __init__(self, context: Context, door: Door, replies: Replies) -> None:
        self.context = context
        self.door = door
        self.replies = replies
        self.busy = False
        """A request takes several turns, and those behind it wait."""
        self.closed = False
        self.unsettled: dict[Partition, Later[Appended]] = {}
        self.work = 0
        """What was answered by hand in this turn."""

    def send(self, frames: bytes) -> None:
        self.door.sent_bytes += len(frames)
        self.replies.send(frames)

    def say(self, frame: bytes) -> None:
        """Send an answer that was made by hand: too many of them would keep others waiting."""
        self.work += _FRAME_WORK + len(frame)
        self.send(frame)

    def fill(self, place: Place, frames: bytes) -> None:
        self.door.sent_bytes += len(frames)
        place.fill(frames)

    def visible(self) -> Sequence[Topic]:
        """The topics the peer may know of."""
        return rights.visible(self.context.access, self.context.broker.topics)

    def refuse(
        self, dialect: Dialect, request: Request | None, refusal: Exception, place: Place | None
    ) -> None:
        self.context.metrics.request_errors += 1
        frame = dialect.refusal(request, refusal, self.visible)
        if place is None:
            self.say(frame)
        else:
            self.fill(place, frame)

    def answer_with_ends(
        self,
        dialect: Dialect,
        request: Request,
        partitions: Collection[Partition],
        encode: Callable[[Mapping[Partition, Offset]], bytes],
    ) -> None:
        """Answer once the ends of these partitions are durable; `encode` may refuse."""
        ends = self.context.broker.log.ends(partitions)
        place = None if ends.ready else self.replies.place()

        def settled(found: Later[Mapping[Partition, Offset]]) -> None:
            try:
                frame = encode(found.value)
            except BrokerError as refusal:
                self.refuse(dialect, request, refusal, place)
                return
            if place is None:
                self.say(frame)
            else:
                self.fill(place, frame)

        ends.then(settled)

    def answer_later(
        self,
        dialect: Dialect,
        request: Request,
        later: Later[T],
        encode: Callable[[T], bytes],
        kept: Place | None = None,
    ) -> None:
        """Answer now if it is there already, else keep the place, unless it is kept already."""
        place = self.replies.place() if kept is None and not later.ready else kept
        self.work += _FRAME_WORK

        def arrived(filled: Later[T]) -> None:
            try:
                value = filled.value
            except BrokerError as refusal:
                self.refuse(dialect, request, refusal, place)
                return
            if place is None:
                self.send(encode(value))
            else:
                self.fill(place, encode(value))

        later.then(arrived)

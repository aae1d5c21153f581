"""The way out of one RustLog connection, as what serves its requests sees it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, TypeVar

from pentalog.broker.port import Topic
from pentalog.model.errors import BrokerError, TopicNotFound
from pentalog.model.later import Later, all_of
from pentalog.model.types import Appended, Offset, Partition
from pentalog.protocols.rustlog import rights
from pentalog.protocols.rustlog.door import Door
from pentalog.protocols.rustlog.messages import Request
from pentalog.protocols.rustlog.replies import Dialect
from pentalog.session import Context, Place, Replies

T = TypeVar("T")
Steps = Generator[None, None, bytes]
"""Makes an answer in steps."""

_FRAME_WORK: Final = 512
CREATION_WORK: Final = 64 << 10
"""A topic that is made: it is a directory and some files."""
_ENDS_PER_STEP: Final = 64
_ASKED_TOPICS_MAX: Final = 2_000
"""In one turn, for a refusal that names topics."""


def finished(steps: Steps) -> bytes:
    """The answer, made at once."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return bytes(ended.value)


def _nothing() -> None: ...


class Line:
    """Counts what leaves, and knows which writes of this connection are not safe yet."""

    __slots__ = ("_abandon", "busy", "closed", "context", "door", "replies", "unsettled", "work")

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
        self._abandon: Callable[[], None] = _nothing
        """Ends the request that is answered in slices."""

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

    def visible(self) -> Iterable[Topic]:
        """Topics the client may know of, among the first: each is a question to the ACLs."""
        first = islice(self.context.broker.topics.all(), _ASKED_TOPICS_MAX)
        return rights.visible(self.context.access, first)

    def partitions(self, topic: str) -> int:
        """Return how many a topic has; 0 if the client may not know of it."""
        try:
            found = self.context.broker.topics.get(topic)
        except TopicNotFound:
            return 0
        return sum(each.partitions for each in rights.visible(self.context.access, [found]))

    def refuse(
        self, dialect: Dialect, request: Request | None, refusal: Exception, place: Place | None
    ) -> None:
        self.context.metrics.request_errors += 1
        frame = dialect.refusal(request, refusal, self)
        if place is None:
            self.say(frame)
        else:
            self.fill(place, frame)

    def slice(
        self,
        dialect: Dialect,
        request: Request,
        steps: Steps,
        kept: Place | None = None,
        *,
        held: Callable[[], None] | None = None,
    ) -> None:
        """Answer with the frame that steps make; what comes after the request waits meanwhile.

        `kept` and `held` are the place that is kept and the hold on the connection, if there are.
        """
        place = self.replies.place() if kept is None else kept
        release = held
        is_done = False

        def answer() -> Iterator[None]:
            frame = yield from steps
            self.work += _FRAME_WORK + len(frame)
            if not self.closed:
                self.fill(place, frame)

        def done(error: Exception | None) -> None:
            nonlocal is_done
            is_done = True
            self._abandon = _nothing
            if release is not None:
                release()
            if isinstance(error, BrokerError):
                self.refuse(dialect, request, error, place)
            elif error is not None:
                self.replies.hang_up()
                raise error

        abandon = self.context.slices.run(answer(), done)
        if not is_done:
            self._abandon = abandon
            if release is None:
                release = self.replies.hold()

    def slice_with_ends(
        self,
        dialect: Dialect,
        request: Request,
        partitions: Sequence[Partition],
        steps: Callable[[Mapping[Partition, Offset]], Steps],
    ) -> None:
        """Answer with what steps make of the ends of these partitions, once they are durable."""
        log = self.context.broker.log
        place = self.replies.place()
        release = self.replies.hold()
        waiting: list[Later[Mapping[Partition, Offset]]] = []
        is_asked = False

        def ask() -> Iterator[None]:
            for start in range(0, len(partitions), _ENDS_PER_STEP):
                waiting.append(log.ends(partitions[start : start + _ENDS_PER_STEP]))
                yield

        def asked(error: Exception | None) -> None:
            nonlocal is_asked
            is_asked = True
            if error is not None:
                release()
                self.replies.hang_up()
                raise error
            all_of(waiting).then(settled)

        def settled(_: Later[None]) -> None:
            ends: dict[Partition, Offset] = {}
            try:
                for each in waiting:
                    ends.update(each.value)
            except BrokerError as refusal:
                release()
                self.refuse(dialect, request, refusal, place)
                return
            if not self.closed:
                self.slice(dialect, request, steps(ends), place, held=release)

        abandon = self.context.slices.run(ask(), asked)
        if not is_asked:
            self._abandon = abandon

    def close(self) -> None:
        self.closed = True
        self._abandon()

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

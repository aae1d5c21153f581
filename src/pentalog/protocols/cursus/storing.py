"""Large batches, stored a part at a time so that others are served in between.

The whole frame is turned into record batches first, from where it lies; only then the first of
them is appended.  A client that disconnects before that leaves nothing in the log, one that
disconnects later leaves all of its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from pentalog.kernels import CursusFrame, Facts, cursus_cut
from pentalog.model.errors import BrokerError, RecordTooLarge, TopicNotFound
from pentalog.model.later import Later
from pentalog.model.settings import LogSettings
from pentalog.model.types import Appended

if TYPE_CHECKING:
    from pentalog.broker.port import Admitted
    from pentalog.protocols.cursus.calls import Call
    from pentalog.protocols.cursus.door import Route
    from pentalog.protocols.cursus.workroom import Reservation

LARGE_BYTES: Final = 1 << 20
"""Frames of more than this are stored in parts."""
_PART_BYTES: Final = 1 << 20
_COPIES: Final = 2
"""How often a frame is in memory while it is stored, besides where it lies."""

Make = Callable[[memoryview, int, int, int, int], tuple[bytearray, Facts]]
"""Record batches of some messages: data, start, end, number, and how many came before them."""


class Storing:
    """One large frame on its way into the log."""

    def __init__(
        self,
        call: Call,
        route: Route,
        read: CursusFrame,
        size: int,
        skip: int,
        make: Make,
        appended: Callable[[Appended], None],
    ) -> None:
        self._call = call
        self._route = route
        self._read = read
        self._skip = skip
        self._make = make
        self._appended = appended
        self._position = read.messages_start
        self._done = 0
        """Messages that have become record batches, or were stored before."""
        self._parts: list[tuple[bytearray, Facts]] = []
        self._admitted: list[tuple[memoryview, Facts, LogSettings | None]] = []
        """Those that the topic accepts; the first is written when all of them are here."""
        self._last: Appended | None = None
        self._release: Callable[[], None] = _nothing
        self.room = call.room or self._reserve(_COPIES * size)
        call.room = None

    def _reserve(self, size: int) -> Reservation:
        session = self._call.session
        owner = session.context.access.owner
        return session.door.workroom.reserve(owner, size, session.hold())

    def step(self, data: memoryview) -> bool:
        """Make record batches of the next part; True once all are made, or were refused."""
        if not self.room.granted:
            return False
        try:
            self._step(data)
        except BrokerError as refusal:
            self.abandon()
            self._call.refuse(refusal)
            return True
        if self._done < self._read.records:
            return False
        self._call.keep_place()
        self._release = self._call.session.hold()
        self._parts.reverse()
        self._call.session.context.runtime.soon(self._admit)
        return True

    def _admit(self) -> None:
        """Have the parts checked that the topic has rules for, then write all of them."""
        log = self._call.broker.log
        while self._parts:
            batches, facts = self._parts.pop()
            view = memoryview(batches)
            try:
                admission = log.admission(self._route.at, view, facts, owned=True)
            except BrokerError as refusal:
                self._stored(refusal)
                return
            if admission is None:
                self._admitted.append((view, facts, None))
            else:
                admission.then(self._part_admitted)
                return
        self._admitted.reverse()
        slices = self._call.session.context.slices
        slices.run(self._append(), self._stored, unconditional=True)

    def _part_admitted(self, admission: Later[Admitted]) -> None:
        try:
            self._admitted.append(admission.value)
        except BrokerError as refusal:
            self._stored(refusal)
        else:
            self._call.session.context.runtime.soon(self._admit)

    def _stored(self, error: Exception | None) -> None:
        self._parts.clear()
        self._admitted.clear()
        self.room.release()
        self._release()
        self._finish(error)

    def abandon(self) -> None:
        """Store nothing of it."""
        self._parts.clear()
        self.room.release()
        self._call.finish()

    def _step(self, data: memoryview) -> None:
        if self._skip:
            self._done, self._position = cursus_cut(
                data, self._position, len(data), self._skip, bytes_max=len(data)
            )
            self._skip = 0
        left = self._read.records - self._done
        taken, end = cursus_cut(data, self._position, len(data), left, bytes_max=_PART_BYTES)
        batches, facts = self._make(data, self._position, end, taken, self._done)
        most = self._route.topic.settings.message_bytes_max
        if facts.batch_bytes_max > most:
            raise RecordTooLarge(
                f"batch of {facts.batch_bytes_max} bytes for {self._route.at}; "
                f"max.message.bytes accepts {most}"
            )
        self._parts.append((batches, facts))
        self._position = end
        self._done += taken

    def _append(self) -> Iterator[None]:
        log, topics = self._call.broker.log, self._call.broker.topics
        topic = topics.get(self._route.at.topic)
        while self._admitted:
            if topics.get(topic.name).topic_id != topic.topic_id:
                raise TopicNotFound(f"{topic.name} was deleted")  # with the parts before this one
            batches, facts, opened = self._admitted.pop()
            self._last = log.append(self._route.at, batches, facts, parted=True, opened=opened)
            yield

    def _finish(self, error: Exception | None) -> None:
        if error is None:
            assert self._last is not None, "a batch has messages"
            last = self._last
            self._call.attempt(lambda: self._appended(last))
        elif isinstance(error, BrokerError):
            self._call.refuse(error)
        else:
            raise error


def _nothing() -> None: ...


def run_steps(storing: Storing, data: memoryview) -> Iterator[None]:
    """Store a frame that is kept in memory, for `Slices`."""
    while not storing.step(data):
        yield

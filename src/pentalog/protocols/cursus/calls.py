"""One request on its way: what it asks, and its place in the line of replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pentalog.broker.port import Broker
from pentalog.model.later import Later
from pentalog.model.types import Piece
from pentalog.protocols.cursus.errors import REFUSALS, Refused, Unsettled, explain, structured
from pentalog.protocols.cursus.frames import framed
from pentalog.protocols.cursus.messages import Command, encoded
from pentalog.session import Place

if TYPE_CHECKING:
    from pentalog.protocols.cursus.door import Door, OpenTransaction
    from pentalog.protocols.cursus.session import CursusSession
    from pentalog.protocols.cursus.workroom import Reservation

T = TypeVar("T")


class Call:
    __slots__ = ("_place", "command", "finished", "refused", "room", "session", "waivable")

    def __init__(self, session: CursusSession, command: Command) -> None:
        self.session = session
        self.command = command
        self.refused: Callable[[str], bytes] | None = None
        """Makes the answer to a refusal, where that is not a line of text."""
        self.finished: Callable[[Call], None] | None = None
        """Called once it is answered, or abandoned."""
        self.waivable = False
        """A peer that does not read loses its answer, instead of being stopped by it."""
        self.room: Reservation | None = None
        """Memory that was reserved for its frame."""
        self._place: Place | None = None

    @property
    def broker(self) -> Broker:
        return self.session.context.broker

    @property
    def door(self) -> Door:
        return self.session.door

    def transaction(self, name: str, epoch: int) -> OpenTransaction:
        """What is told of a transaction, from now on if it is new."""
        return self.session.door.transaction(name, epoch, self.session.context.access)

    def shed(self) -> None:
        """Free the memory of a request that may wait for long: all that it says has been read."""
        self.command = self.command._replace(text="", parameters={}, loose=(), message=None)
        if self.room is not None:
            self.room.release()

    def reply(self, text: str) -> None:
        self.send(framed(encoded(text)))

    def send(self, *pieces: Piece) -> None:
        """The answer; once only."""
        if self.waivable and self.session.waives:
            pieces = ()
        if self._place is None:
            self.session.replies.send(*pieces)
        else:
            place, self._place = self._place, None
            place.fill(*pieces)
        self._give_back()
        self.finish()

    def finish(self) -> None:
        """Report that nothing is done for it any more."""
        finished, self.finished = self.finished, None
        if finished is not None:
            finished(self)

    def refuse(self, refusal: Exception) -> None:
        if isinstance(refusal, Unsettled):
            write = refusal.text
            self.after(refusal.settled, lambda found: self.refuse(Refused(write(found))))
            return
        self.session.context.metrics.request_errors += 1
        text = explain(refusal)
        if self.refused is not None:
            self.send(framed(self.refused(text)))
        else:
            if self.session.structured_errors:
                text = structured(text)
            self.reply("ERROR: " + text)

    def after(self, later: Later[T], run: Callable[[T], None]) -> None:
        """Go on with the value when it is there; the answer keeps its place meanwhile."""
        if later.ready:
            self._go_on(later, run)
            return
        if self._place is None:
            self._place = self.session.replies.place()
        later.then(lambda there: self._go_on(there, run))

    def hold_until(self, later: Later[T], run: Callable[[T], None]) -> None:
        """Continue with the value when it is there; other requests of the connection wait."""
        if later.ready:
            self._go_on(later, run)
            return
        self.keep_place()
        release = self.session.hold()

        def arrived(there: Later[T]) -> None:
            release()
            self._go_on(there, run)

        later.then(arrived)

    def run(self, steps: Iterator[None]) -> None:
        """Serve a long request step by step; it ends with its answer or a refusal.

        Other requests of the connection wait until it has ended.
        """
        session = self.session
        ended = False
        release: Callable[[], None] | None = None

        def done(error: Exception | None) -> None:
            nonlocal ended
            ended = True
            if release is not None:
                session.jobs.pop(self, None)
                release()
            if isinstance(error, REFUSALS):
                self.refuse(error)
            elif error is not None:
                raise error

        abandon = session.context.slices.run(steps, done)
        if not ended:
            self.keep_place()
            release = session.hold()
            session.jobs[self] = abandon

    def attempt(self, run: Callable[[], None]) -> None:
        """Go on in a turn of its own; the answer has its place already or takes it now."""
        try:
            run()
        except REFUSALS as refusal:
            self.refuse(refusal)

    def later(self, run: Callable[[], None]) -> None:
        """Continue in a later turn; nothing else of the connection is served before."""
        self.keep_place()
        release = self.session.hold()

        def resume() -> None:
            release()
            if not self.session.ended:
                self.attempt(run)

        self.session.context.runtime.soon(resume)

    def step_later(self, run: Callable[[], None]) -> None:
        """Do what `in_slices` does, but never in this turn."""
        self.keep_place()
        self.session.context.runtime.soon(partial(self.in_slices, run))

    def in_slices(self, run: Callable[[], None]) -> None:
        """Continue when it is the turn of this address: thousands may have waited for the same.

        What `run` reads has its memory reserved, now or by `run`.
        """
        self.keep_place()

        def step() -> Iterator[None]:
            # After a hang-up it is answered: what was asked before still leaves.
            if not self.session.closed:
                self.attempt(run)
            yield

        self.session.context.slices.run(step(), raise_error, unconditional=True)

    def keep_place(self) -> None:
        """What follows may take several turns."""
        if self._place is None:
            self._place = self.session.replies.place()

    def leave_place(self) -> None:
        """Free a place that was kept, without an answer: none will follow."""
        if self._place is not None:
            place, self._place = self._place, None
            place.fill()
        self._give_back()

    @property
    def waits(self) -> bool:
        """It has a place in line that is not filled yet."""
        return self._place is not None

    def _give_back(self) -> None:
        room = self.session.rooms.pop(self, None) if self.session.rooms else None
        if room is not None:
            room.release()

    def _go_on(self, later: Later[T], run: Callable[[T], None]) -> None:
        try:
            run(later.value)
        except REFUSALS as refusal:
            self.refuse(refusal)


def raise_error(error: Exception | None) -> None:
    if error is not None:
        raise error

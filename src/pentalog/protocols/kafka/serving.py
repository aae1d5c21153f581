"""Requests whose work grows with what they name, served in slices between which others are.

A request keeps its place in line, and later requests of its connection wait until it is done: the
order of effects and answers is that of the requests.  While it waits for the disk or for records,
its connection is served on.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pentalog.protocols.kafka.messages import Call, SteppedLine, Steps

if TYPE_CHECKING:
    from pentalog.model.later import Later
    from pentalog.session import Context, Replies

_log: Final = logging.getLogger(__name__)


LARGE_BYTES: Final = 64 << 10
"""A request of more bytes may take megabytes as objects: only some are served at a time."""
LARGE_MAX: Final = 16


class Gate:
    """Bounds how many large requests are in memory as objects, of all connections together.

    The others wait in the buffers that they were received in.  Clients alternate: one with many
    connections does not get more places than another.
    """

    __slots__ = ("_free", "_waiting")

    def __init__(self, places: int = LARGE_MAX) -> None:
        self._free = places
        self._waiting: OrderedDict[str, dict[object, Callable[[], None]]] = OrderedDict()
        """By client, the one whose turn it is first."""

    def enter(self) -> bool:
        """Take a place, if one is free and nobody waits for it; `leave` gives it back."""
        if not self._free or self._waiting:
            return False
        self._free -= 1
        return True

    def wait(self, owner: str, admitted: Callable[[], None]) -> Callable[[], None]:
        """Call `admitted` once with a place taken; returns a function that stops the waiting."""
        key = object()
        self._waiting.setdefault(owner, {})[key] = admitted

        def stop() -> None:
            queue = self._waiting.get(owner, {})
            queue.pop(key, None)
            if not queue:
                self._waiting.pop(owner, None)

        return stop

    def leave(self) -> None:
        self._free += 1
        if self._waiting:
            self._free -= 1
            owner, queue = self._waiting.popitem(last=False)
            admitted = queue.pop(next(iter(queue)))
            if queue:
                self._waiting[owner] = queue
            admitted()


class Serving:
    """The requests of one connection that are served in steps."""

    __slots__ = (
        "_gate",
        "_inside",
        "_jobs",
        "_release",
        "_replies",
        "_room",
        "_running",
        "_stop_waiting",
        "context",
        "failed",
        "worked",
    )

    def __init__(
        self,
        context: Context,
        replies: Replies,
        gate: Gate,
        failed: Callable[[Call, Exception], None],
        worked: Callable[[float], None],
    ) -> None:
        """`failed` gets what a request raised, `worked` the seconds spent in later turns."""
        self._gate = gate
        self._inside = False
        self._stop_waiting: Callable[[], None] | None = None
        self.context = context
        self.failed = failed
        self.worked = worked
        self._replies = replies
        self._room: Callable[[], None] | None = None
        """Gives back the memory that is reserved for the answer of a large request."""
        self._jobs: set[_Job] = set()
        self._running = 0
        self._release: Callable[[], None] | None = None

    @property
    def busy(self) -> bool:
        """Later requests must wait."""
        return self._running > 0

    def admit(self, size_bytes: int) -> bool:
        """May a request be served now?  If not, the connection is held until it may."""
        if size_bytes <= LARGE_BYTES or self._inside:
            return True
        if not self._reserve(size_bytes):
            return False
        if self._gate.enter():
            self._inside = True
            return True
        release = self._replies.hold()

        def admitted() -> None:
            self._inside = True
            self._stop_waiting = None
            release()

        self._stop_waiting = self._gate.wait(self.context.access.owner, admitted)
        return False

    def _reserve(self, size_bytes: int) -> bool:
        """Reserve memory for an answer as large as its request; False if that has to wait.

        Before a place is taken: a client that does not read its answers must not keep the places
        of others.
        """
        if self._room is None:
            reserved = self._replies.reserve(size_bytes)
            if not reserved.ready:
                release = self._replies.hold()

                def granted(later: Later[Callable[[], None]]) -> None:
                    self._room = later.value
                    release()

                reserved.then(granted)
                return False
            self._room = reserved.value
        return True

    @property
    def reserved(self) -> bool:
        """Memory for the answer is reserved."""
        return self._room is not None

    def served(self) -> None:
        """The request that was admitted is done, or goes on in later turns."""
        if self._inside and not self._running:
            self._inside = False
            room, self._room = self._room, None
            if room is not None:
                room()
            self._gate.leave()

    def run(self, call: Call, steps: Steps[None], *, finishes: bool) -> None:
        """Serve one request by its steps, as much as fits now and the rest in later turns."""
        try:
            wanted = next(steps)
            if wanted is not None and wanted.ready:
                wanted = next(steps)
        except StopIteration:
            return  # as most do: it was short, and waits for nothing
        job = _Job(self, call, steps, finishes=finishes)
        self._jobs.add(job)
        job.begin(wanted)

    def close(self) -> None:
        """Abandon what nobody waits for any more."""
        for job in [job for job in self._jobs if not job.finishes]:
            job.abandon()
            self._jobs.discard(job)
        if self._stop_waiting is not None:
            self._stop_waiting()
            self._stop_waiting = None
        self.served()

    def began(self) -> None:
        self._running += 1

    def hold(self) -> None:
        """Serve no later request of this connection for now."""
        if self._release is None:
            self._release = self._replies.hold()

    def paused(self) -> None:
        self._running -= 1
        self.served()
        if not self._running and self._release is not None:
            release, self._release = self._release, None
            release()

    def ended(self, job: _Job) -> None:
        self._jobs.discard(job)


class _Job:
    """One request."""

    __slots__ = (
        "_abandon",
        "_abandoned",
        "_in_later_turn",
        "_line",
        "_serving",
        "_steps",
        "_wanted",
        "call",
        "finishes",
    )

    def __init__(self, serving: Serving, call: Call, steps: Steps[None], *, finishes: bool) -> None:
        self.call = call
        self.finishes = finishes
        self._serving = serving
        self._steps = steps
        self._line = call.line = SteppedLine(call.line)
        self._wanted: Later[Any] | None = None
        self._abandon: Callable[[], None] | None = None
        self._abandoned = False
        self._in_later_turn = False

    def begin(self, wanted: Later[Any] | None) -> None:
        """Go on after the first step; what is raised in this turn is raised here."""
        if wanted is not None and not wanted.ready:
            self._in_later_turn = True
            self._line.keep()
            wanted.then(self._go_on)
            return
        ended = self._run(self._stopped_later)
        self._in_later_turn = True
        for error in ended:
            self._stopped(error)

    def abandon(self) -> None:
        self._abandoned = True
        if self._abandon is not None:
            self._abandon()
            self._serving.paused()
        with contextlib.suppress(ValueError):  # it runs: `_until_wait` ends it after this step
            self._steps.close()

    def _go_on(self, _: Later[Any]) -> None:
        """What the steps waited for has arrived."""
        if not self._abandoned:
            for error in self._run(self._stopped_later):
                self._stopped_later(error)

    def _run(self, done: Callable[[Exception | None], None]) -> list[Exception | None]:
        """Run until the steps end or wait; `done` is called if that is not in this turn.

        Returns how they ended in this turn, if they did.
        """
        ended: list[Exception | None] = []
        suspended = False

        def stopped(error: Exception | None) -> None:
            if suspended:
                done(error)
            else:
                ended.append(error)

        self._serving.began()
        abandon = self._serving.context.slices.run(
            self._until_wait(), stopped, unconditional=self._serving.reserved
        )
        if not ended:
            suspended = True
            self._abandon = abandon
            self._line.keep()
            self._serving.hold()
        return ended

    def _until_wait(self) -> Iterator[None]:
        monotonic = self._serving.context.runtime.monotonic
        start_s = monotonic()
        for wanted in self._steps:
            if self._abandoned:
                self._steps.close()
                return
            if wanted is not None and not wanted.ready:
                self._wanted = wanted
                break
            if self._in_later_turn:
                self._serving.worked(monotonic() - start_s)
            yield
            start_s = monotonic()
        if self._in_later_turn:
            self._serving.worked(monotonic() - start_s)

    def _stopped(self, error: Exception | None) -> None:
        self._abandon = None
        wanted, self._wanted = self._wanted, None
        if wanted is not None and error is None:
            self._line.keep()
            self._serving.paused()
            wanted.then(self._go_on)
            return
        self._serving.ended(self)
        try:
            if error is not None:
                self._serving.failed(self.call, error)
        finally:
            self._serving.paused()

    def _stopped_later(self, error: Exception | None) -> None:
        try:
            self._stopped(error)
        except Exception:
            context = self._serving.context
            _log.exception("%s closed: a mistake of ours, please report it", context.peer)
            self._line.give_up()
            self.call.line.hang_up()

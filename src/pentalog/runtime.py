"""Port for time and threads: what the broker needs of the world besides files; turns, slices.

The server implements it on an event loop; tests and the simulator with virtual time.
All callbacks run on the one thread that owns the broker's state.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from math import inf
from typing import Final, Generic, Protocol, TypeVar

T = TypeVar("T")

TURN_BUDGET_S: Final = 0.004
"""Work of one kind (reads, slices of long requests) in one turn of the loop."""
_QUANTA_PER_TURN: Final = 4
"""Long jobs that share one turn's budget."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class Runtime(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""

    def soon(self, run: Callable[[], None]) -> None:
        """Call `run` after everything that is already due in this turn."""

    def after(self, delay_ms: float, run: Callable[[], None]) -> Timer:
        """Call `run` once, `delay_ms` from now, unless cancelled."""

    def offload(
        self,
        lane: str,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        """Run `work` on the thread of `lane`, then `done` with its outcome on the owner's thread.

        A lane is one thread: its work is done in order.  Only for calls that release the
        interpreter (fsync, reads of cold data, compression, SQLite).
        """


class _Alternating(Generic[T]):
    """A queue in which the items of different owners alternate; those of one keep their order."""

    __slots__ = ("_by_owner", "_count")

    def __init__(self) -> None:
        self._by_owner: OrderedDict[object, deque[T]] = OrderedDict()
        """The owner whose item is next comes first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, owner: object, item: T) -> None:
        items = self._by_owner.get(owner)
        if items is None:
            items = self._by_owner[owner] = deque()
        items.append(item)
        self._count += 1

    def popleft(self) -> T:
        owner, items = self._by_owner.popitem(last=False)
        if len(items) > 1:
            self._by_owner[owner] = items
        self._count -= 1
        return items.popleft()


class Turns:
    """Cuts work into turns of the loop: so many pieces in one, the others later, in order.

    A burst (thousands of members that join, or time out, at once) would otherwise be served
    in one turn, in which nobody else is.  Where pieces differ in cost, the callers report what
    each took (`spend`), and a turn ends as soon as its budget is used up as well.  Pieces of
    different owners alternate, so that one with many does not delay one with few.
    """

    __slots__ = (
        "_budget_s",
        "_left",
        "_most",
        "_runtime",
        "_scheduled",
        "_waiting",
        "left_s",
    )

    def __init__(self, runtime: Runtime, most: int, budget_s: float = inf) -> None:
        self._runtime = runtime
        self._most = most
        self._left = most
        self._budget_s = budget_s
        self.left_s = budget_s
        """Seconds of work that this turn has left; positive when `take` has said yes."""
        self._scheduled = False
        self._waiting: _Alternating[Callable[[], None]] = _Alternating()

    @property
    def waiting(self) -> int:
        """Pieces that were put off."""
        return len(self._waiting)

    def take(self) -> bool:
        """May another piece be done in this turn?  If not, `wait`."""
        if self._left == 0 or self.left_s <= 0 or self._waiting:
            return False
        self._left -= 1
        if self._left == 0:
            # Only now: a loop with little to do is not woken for turns nobody runs out of.
            self._schedule()
        return True

    def spend(self, duration_s: float) -> None:
        """Report how long a piece took."""
        self.left_s -= duration_s
        if self.left_s <= 0:
            self._schedule()

    def wait(self, run: Callable[[], None], owner: object = None) -> None:
        """Do a piece when its turn has come; those of one owner are done in order."""
        self._waiting.append(owner, run)
        self._schedule()

    def do(self, run: Callable[[], None], owner: object = None) -> None:
        """Do a piece now if this turn has room for it, else when its turn has come."""
        if self.take():
            run()
        else:
            self.wait(run, owner)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._runtime.soon(self._next)

    def _next(self) -> None:
        self._scheduled = False
        self._left = self._most
        self.left_s = self._budget_s
        try:
            while self._waiting and self._left > 0 and self.left_s > 0:
                self._left -= 1
                self._waiting.popleft()()
        finally:
            if self._waiting or self._left == 0 or self.left_s <= 0:
                self._schedule()


class Job:
    """One iterator that is run to its end, or None once it is abandoned."""

    __slots__ = ("done", "owner", "running", "steps")

    def __init__(
        self, steps: Iterator[None], done: Callable[[Exception | None], None], owner: object
    ) -> None:
        self.steps: Iterator[None] | None = steps
        self.done = done
        self.owner = owner
        self.running = False

    def abandon(self) -> None:
        steps, self.steps = self.steps, None
        # A running generator cannot be closed; the loop that runs it does so after this step.
        if steps is not None and not self.running:
            _close(steps)


class Slices:
    """Runs long work a few milliseconds per turn of the loop, all clients together, round robin.

    A job that has not run yet alternates with those that have: a short request does not wait
    until every long one has had its share.  Jobs of different owners alternate too.
    """

    __slots__ = (
        "_budget_s",
        "_closed",
        "_cut",
        "_fresh",
        "_left_s",
        "_prefer_fresh",
        "_runtime",
        "_scheduled",
        "_started",
    )

    def __init__(
        self,
        runtime: Runtime,
        budget_s: float = TURN_BUDGET_S,
        *,
        cut: Callable[[], bool] | None = None,
    ) -> None:
        """`cut` ends a turn after a step: for simulators, whose clock stops within a turn."""
        self._runtime = runtime
        self._budget_s = budget_s
        self._cut = cut
        self._left_s = budget_s
        self._fresh: _Alternating[Job] = _Alternating()
        self._started: _Alternating[Job] = _Alternating()
        self._prefer_fresh = True
        self._scheduled = False
        self._closed = False

    def close(self) -> None:
        """Abandon all jobs, and every later one: what they would change is about to be closed."""
        self._closed = True
        for jobs in (self._fresh, self._started):
            while jobs:
                jobs.popleft().abandon()

    @property
    def waiting(self) -> int:
        """Jobs that are not done."""
        return len(self._fresh) + len(self._started)

    def run(
        self,
        steps: Iterator[None],
        done: Callable[[Exception | None], None],
        owner: object = None,
        *,
        unconditional: bool = False,
    ) -> Callable[[], None]:
        """Do as much of `steps` now as fits in this turn's budget and continue in later turns.

        Each `next` does a bounded piece (well under a millisecond).  `done` gets None when the
        iterator ends, or the exception it raised; it may be called before `run` returns.  Returns
        a function that abandons the rest (closes the iterator; `done` is then never called).

        `unconditional`: start even while the client's address has too many unread answers.  For
        work whose answer is small, or has its memory reserved: if it waited for memory, what it
        holds would never be released.
        """
        job = Job(steps, done, owner)
        self.start(job)
        return job.abandon

    def start(self, job: Job) -> None:
        """Do what `run` does, for a job that was made before."""
        if self._closed:
            job.abandon()
        elif self._left_s > 0 and not self._fresh:
            self._advance(job)
        else:
            self._fresh.append(job.owner, job)
            self._schedule()

    def _advance(self, job: Job) -> None:
        """Run one job for its share of this turn."""
        steps = job.steps
        if steps is None:
            return
        monotonic, cut = self._runtime.monotonic, self._cut
        start_s = now_s = monotonic()
        share_s = self._budget_s / _QUANTA_PER_TURN if self.waiting else self._left_s
        end_s = start_s + min(share_s, self._left_s)
        ended, error = False, None
        job.running = True
        try:
            while job.steps is not None and now_s <= end_s:
                next(steps)
                now_s = monotonic()
                if cut is not None and cut():
                    self._left_s = 0.0
                    break
        except StopIteration:
            ended = True
        except Exception as raised:
            ended, error = True, raised
        finally:
            job.running = False
            self._left_s -= monotonic() - start_s
            if self._left_s <= 0:
                self._schedule()
        if job.steps is None:
            _close(steps)
        elif ended:
            job.steps = None
            job.done(error)
        else:
            self._started.append(job.owner, job)
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._runtime.soon(self._next)

    def _next(self) -> None:
        self._scheduled = False
        self._left_s = self._budget_s
        fresh, started = self._fresh, self._started
        try:
            while self._left_s > 0 and (fresh or started):
                chosen = fresh if fresh and (self._prefer_fresh or not started) else started
                self._prefer_fresh = chosen is started
                self._advance(chosen.popleft())
        finally:
            if fresh or started or self._left_s <= 0:
                self._schedule()


def _close(steps: Iterator[None]) -> None:
    close = getattr(steps, "close", None)
    if close is not None:
        close()

"""Port for time and threads: what the broker needs of the world besides files; and turns.

The server implements it on an event loop; tests and the simulator with virtual time.
All callbacks run on the one thread that owns the broker's state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


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


class Turns:
    """Cuts work into turns of the loop: so many pieces in one, the others later, in order.

    A burst (thousands of members that join, or time out, at once) would otherwise be served
    in one turn, in which nobody else is.
    """

    __slots__ = ("_left", "_most", "_runtime", "_scheduled", "_waiting")

    def __init__(self, runtime: Runtime, most: int) -> None:
        self._runtime = runtime
        self._most = most
        self._left = most
        self._scheduled = False
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def waiting(self) -> int:
        """Pieces that were put off."""
        return len(self._waiting)

    def take(self) -> bool:
        """May another piece be done in this turn?  If not, `wait`."""
        if self._left == 0 or self._waiting:
            return False
        self._left -= 1
        if self._left == 0:
            # Only now: a loop with little to do is not woken for turns nobody runs out of.
            self._schedule()
        return True

    def wait(self, run: Callable[[], None]) -> None:
        """Do a piece when its turn has come."""
        self._waiting.append(run)
        self._schedule()

    def do(self, run: Callable[[], None]) -> None:
        """Do a piece now if this turn has room for it, else when its turn has come."""
        if self.take():
            run()
        else:
            self.wait(run)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._runtime.soon(self._next)

    def _next(self) -> None:
        self._scheduled = False
        self._left = self._most
        waiting = self._waiting
        try:
            while waiting and self._left > 0:
                self._left -= 1
                waiting.popleft()()
        finally:
            if waiting or self._left == 0:
                self._schedule()

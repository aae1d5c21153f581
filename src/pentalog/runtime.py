"""Port for time and threads: what the broker needs of the world besides files.

The server implements it on an event loop; tests and the simulator with virtual time.
All callbacks run on the one thread that owns the broker's state.
"""

from __future__ import annotations

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

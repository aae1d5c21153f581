"""The patience with which a gateway looks for whoever keeps the subscriptions.

When their keeper is killed, seconds pass until another is chosen.  Clients of a broker know no such
time and give up when they are refused, so what they ask for stays where it is, in their
connection's buffer, and comes again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pentalog.runtime import Timer
from pentalog.session import Context

PATIENCE_MS: Final = 15_000
"""After this frames are refused: an election after a death takes less."""
_PAUSE_FIRST_MS: Final = 50
_PAUSE_MS_MAX: Final = 1_000


class Holding:
    """What one connection waits for."""

    def __init__(self, context: Context, again: Callable[[], None]) -> None:
        self._runtime = context.runtime
        self._subscriptions = context.broker.subscriptions
        self._again = again
        self._since_s: float | None = None
        self._pause_ms = _PAUSE_FIRST_MS
        self._timer: Timer | None = None
        self._stop_watching: Callable[[], None] = lambda: None

    def wait(self) -> bool:
        """Call `again` in a moment, or when they have moved; False: that took too long."""
        now_s = self._runtime.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        left_ms = PATIENCE_MS - (now_s - self._since_s) * 1000
        if left_ms <= 0:
            return False
        self._timer = self._runtime.after(min(self._pause_ms, left_ms), self._wake)
        self._stop_watching = self._subscriptions.watch(self._wake)
        self._pause_ms = min(2 * self._pause_ms, _PAUSE_MS_MAX)
        return True

    def _wake(self) -> None:
        self._stop()
        self._again()

    def end(self) -> None:
        """It was answered: whoever waits next has all the patience again."""
        self._stop()
        self._since_s = None
        self._pause_ms = _PAUSE_FIRST_MS

    def _stop(self) -> None:
        self._stop_watching()
        self._stop_watching = lambda: None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

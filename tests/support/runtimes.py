"""Runtimes for tests: time stands still unless told, threads run when told."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any


class TestTimer:
    __test__ = False

    def __init__(self, run: Callable[[], None]) -> None:
        self.run: Callable[[], None] | None = run

    def cancel(self) -> None:
        self.run = None


class SteppedRuntime:
    """Everything happens on the caller's thread, in `step` and `advance`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = float(now_ms)
        self._start_ms = float(now_ms)
        self._soon: deque[Callable[[], None]] = deque()
        self._work: deque[tuple[str, Callable[[], Any], Callable[[Any, Any], None]]] = deque()
        self._timers: list[tuple[float, int, TestTimer]] = []
        self._count = itertools.count()
        self.wall_step_ms = 0
        """How far the wall clock has been set forward, or back if negative."""
        self.held_lanes: set[str] = set()
        """Lanes whose threads are stuck until released."""

    def now_ms(self) -> int:
        return int(self._now_ms) + self.wall_step_ms

    def monotonic(self) -> float:
        return (self._now_ms - self._start_ms) / 1000

    def soon(self, run: Callable[[], None]) -> None:
        self._soon.append(run)

    def after(self, delay_ms: float, run: Callable[[], None]) -> TestTimer:
        timer = TestTimer(run)
        heapq.heappush(self._timers, (self._now_ms + delay_ms, next(self._count), timer))
        return timer

    def offload(self, lane: str, work: Callable[[], Any], done: Callable[[Any, Any], None]) -> None:
        self._work.append((lane, work, done))

    def step(self) -> None:
        """Run everything that is due, threads included, until nothing is."""
        while True:
            if self._soon:
                self._soon.popleft()()
                continue
            ready = next((w for w in self._work if w[0] not in self.held_lanes), None)
            if ready is None:
                return
            self._work.remove(ready)
            _, work, done = ready
            try:
                outcome, error = work(), None
            except Exception as failure:  # handed over, as a thread would
                outcome, error = None, failure
            done(outcome, error)

    def advance(self, delay_ms: float) -> None:
        """Let time pass."""
        self.step()
        end = self._now_ms + delay_ms
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            self._now_ms = max(self._now_ms, due)
            if timer.run is not None:
                timer.run()
            self.step()
        self._now_ms = end

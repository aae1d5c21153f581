"""A runtime that moves only when told to, so a test can stop between any two steps."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any


class StepTimer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class StepRuntime:
    """Time stands still until `advance`; callbacks and lanes stand still until `run`."""

    def __init__(self) -> None:
        self.time_ms = 1_700_000_000_000
        self.wall_step_ms = 0
        """How far the wall clock has been set forward, or back if negative."""
        self.lanes_blocked = False
        self._due: deque[Callable[[], None]] = deque()
        self._work: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]]
        self._work = deque()
        self._timers: list[tuple[float, int, StepTimer, Callable[[], None]]] = []
        self._numbers = count()

    def now_ms(self) -> int:
        return self.time_ms + self.wall_step_ms

    def monotonic(self) -> float:
        return self.time_ms / 1000

    def soon(self, run: Callable[[], None]) -> None:
        self._due.append(run)

    def after(self, delay_ms: float, run: Callable[[], None]) -> StepTimer:
        timer = StepTimer()
        heapq.heappush(self._timers, (self.time_ms + delay_ms, next(self._numbers), timer, run))
        return timer

    def offload(
        self,
        lane: str,
        work: Callable[[], Any],
        done: Callable[[Any, BaseException | None], None],
    ) -> None:
        self._work.append((work, done))

    def run(self) -> None:
        """Do everything that is due; lane work too unless the lanes are blocked."""
        while self._due or (self._work and not self.lanes_blocked):
            while self._due:
                self._due.popleft()()
            if self._work and not self.lanes_blocked:
                work, done = self._work.popleft()
                try:
                    value = work()
                except Exception as error:
                    done(None, error)
                else:
                    done(value, None)

    def advance(self, delay_ms: int) -> None:
        self.time_ms += delay_ms
        while self._timers and self._timers[0][0] <= self.time_ms:
            _, _, timer, run = heapq.heappop(self._timers)
            if not timer.cancelled:
                run()
        self.run()

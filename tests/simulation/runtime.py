"""Virtual time and threads: one thing happens at a time, and a seed decides which is next.

Work of a lane runs on a thread of its own, but never beside anything else: it hands control
back when it ends and, now and then, in the middle of it, at a file call.  So whatever may happen
between two system calls of a thread can happen here, and is repeated by the same seed.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.simulation.files import Crash

from pentalog.runtime import Slices

_WALL_MS: Final = 1_700_000_000_000
_CUT_SHARE: Final = 0.3
"""Steps of sliced work after which the turn ends: time does not pass within one."""


OPENING_LANES: Final = frozenset({"open", "open-large"})
"""Where batches are opened."""


class VirtualTimer:
    __slots__ = ("run",)

    def __init__(self, run: Callable[[], None]) -> None:
        self.run: Callable[[], None] | None = run

    def cancel(self) -> None:
        self.run = None


class BrokerMistake(Exception):
    """A callback of the broker raised an exception; an event loop would only log it."""


class Clock:
    """Outlives the broker.  The wall clock is the monotonic one, shifted by jumps."""

    def __init__(self) -> None:
        self.elapsed_ms = 0.0
        self.shift_ms = 0
        self.wall_ms_max = _WALL_MS
        self._back_ms = 0

    def jump(self, by_ms: int) -> None:
        self.shift_ms += by_ms
        self._back_ms += max(-by_ms, 0)

    @property
    def latest_ms(self) -> int:
        """The latest time that the wall clock has shown, and by how much it was set back.

        Durations that began while it was set back end early when it is put right.
        """
        return self.wall_ms_max + self._back_ms

    @property
    def was_set_back(self) -> bool:
        return self.now_ms() < self.wall_ms_max - 3_600_000

    def now_ms(self) -> int:
        now = _WALL_MS + self.shift_ms + int(self.elapsed_ms)
        self.wall_ms_max = max(self.wall_ms_max, now)
        return now

    def monotonic(self) -> float:
        return self.elapsed_ms / 1000


class _Work:
    """One piece of offloaded work on its thread."""

    __slots__ = ("_go", "_owner", "done", "error", "finished", "outcome", "ready_ms", "work")

    def __init__(
        self,
        work: Callable[[], Any],
        done: Callable[[Any, BaseException | None], None],
        ready_ms: float,
    ) -> None:
        self.work = work
        self.done = done
        self.ready_ms = ready_ms
        self.finished = False
        self.outcome: Any = None
        self.error: BaseException | None = None
        self._go: threading.Semaphore | None = None
        self._owner = threading.Semaphore(0)

    def resume(self) -> None:
        """Run until the work ends or pauses."""
        if self._go is None:
            self._go = threading.Semaphore(0)
            threading.Thread(target=self._run, daemon=True).start()
        else:
            self._go.release()
        self._owner.acquire()

    def pause(self) -> None:
        """Called on the work's own thread."""
        assert self._go is not None
        self._owner.release()
        self._go.acquire()

    def run_here(self) -> None:
        """Run all of it without a thread."""
        try:
            self.outcome = self.work()
        except BaseException as error:
            self.error = error
        self.finished = True

    def _run(self) -> None:
        self.run_here()
        self._owner.release()


class VirtualRuntime:
    """One life's runtime.  Implements `pentalog.runtime.Runtime`."""

    def __init__(self, clock: Clock, random: Random, *, slow: float, pauses: float) -> None:
        """`slow`: share of work that takes long; `pauses`: how often work is interrupted."""
        self.clock = clock
        self.random = random
        self.steps = 0
        self._slow = slow
        self._pauses = pauses
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, VirtualTimer]] = []
        self._count = 0
        self._lanes: dict[str, deque[_Work]] = {}
        self._running: _Work | None = None
        self.stuck: frozenset[str] = frozenset()
        """Lanes whose threads do not get on."""
        self.gate: Callable[[], None] = _open_gate
        """Called before each step; may end the life."""

    # The port

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def soon(self, run: Callable[[], None]) -> None:
        self._soon.append(run)

    def after(self, delay_ms: float, run: Callable[[], None]) -> VirtualTimer:
        timer = VirtualTimer(run)
        self._count += 1
        due_ms = self.clock.elapsed_ms + max(0.0, delay_ms)
        heapq.heappush(self._timers, (due_ms, self._count, timer))
        return timer

    def offload(
        self, lane: str, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        delay_ms = self.random.choice((1, 20, 300)) if self.random.random() < self._slow else 0
        entry = _Work(work, done, self.clock.elapsed_ms + delay_ms)
        self._lanes.setdefault(lane, deque()).append(entry)

    def slices(self) -> Slices:
        """Return slices whose turns end where the seed says."""
        return Slices(self, cut=lambda: self.random.random() < _CUT_SHARE)

    # Driving it

    def at_file_call(self) -> None:
        """Maybe hand control back in the middle of offloaded work."""
        running = self._running
        if running is not None and self._pauses and self.random.random() < self._pauses:
            self._running = None
            running.pause()
            self._running = running

    def step(self) -> bool:
        """Do one thing that is due; False if nothing is before time passes."""
        self.gate()
        self.steps += 1
        self._ring()
        now = self.clock.elapsed_ms
        ready = [
            lane
            for lane, works in self._lanes.items()
            if works and works[0].ready_ms <= now and lane not in self.stuck
        ]
        if self._soon and (not ready or self.random.random() < 0.7):
            try:
                self._soon.popleft()()
            except Exception as error:
                raise BrokerMistake from error
            return True
        if ready:
            self._work(self.random.choice(ready))
            return True
        return False

    def _ring(self) -> None:
        """Timers that are due join the others."""
        now = self.clock.elapsed_ms
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.run is not None:
                self._soon.append(_fire(timer))

    def _work(self, lane: str) -> None:
        works = self._lanes[lane]
        entry = works[0]
        self._running = entry
        if self._pauses:
            entry.resume()
        else:
            entry.run_here()
        self._running = None
        if not entry.finished:
            return
        works.popleft()
        error = entry.error
        if isinstance(error, Crash) or (error is not None and not isinstance(error, Exception)):
            raise error
        self._soon.append(lambda: entry.done(entry.outcome, error))

    def advance(self, limit_ms: float) -> bool:
        """Let time pass up to the next thing that is due, at most to `limit_ms`."""
        lanes = self._lanes.items()
        due = [works[0].ready_ms for lane, works in lanes if works and lane not in self.stuck]
        while self._timers and self._timers[0][2].run is None:
            heapq.heappop(self._timers)
        if self._timers:
            due.append(self._timers[0][0])
        target = min([limit_ms, *due])
        self.clock.elapsed_ms = max(self.clock.elapsed_ms, target)
        return bool(due) and target < limit_ms

    def run_for(self, duration_ms: float) -> None:
        """Do everything that is due within a time."""
        limit_ms = self.clock.elapsed_ms + duration_ms
        while True:
            while self.step():
                pass
            if not self.advance(limit_ms):
                break
        while self.step():
            pass

    def finish_lanes(self) -> None:
        """Let the threads of all lanes finish, and report, before time passes."""
        self.stuck = frozenset()
        while self._soon or any(self._lanes.values()):
            for works in self._lanes.values():  # also what was put there meanwhile
                for entry in works:
                    entry.ready_ms = self.clock.elapsed_ms
            self.step()

    @property
    def idle(self) -> bool:
        left = (works for lane, works in self._lanes.items() if lane not in self.stuck)
        return not self._soon and not any(left)

    def kill(self) -> None:
        """End the threads that are in the middle of something; their next file call raises."""
        self._soon.clear()
        self._timers.clear()
        for works in self._lanes.values():
            for entry in works:
                if entry._go is not None and not entry.finished:
                    self._pauses = 0.0
                    entry.resume()
        self._lanes.clear()


def _open_gate() -> None: ...


def _fire(timer: VirtualTimer) -> Callable[[], None]:
    def run() -> None:
        ring, timer.run = timer.run, None
        if ring is not None:
            ring()

    return run

"""Time and threads for the broker, on the event loop that owns its state."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, TypeAlias, TypeVar

from pentalog.runtime import Timer

T = TypeVar("T")

_Done: TypeAlias = Callable[[Any, BaseException | None], None]
_Job: TypeAlias = tuple[Callable[[], Any], _Done]

_JOIN_TIMEOUT_S: Final = 5.0


class AsyncioRuntime:
    """`runtime.Runtime`, for real."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lanes: dict[str, _Lane] = {}
        self._finished: deque[tuple[_Done, Any, BaseException | None]] = deque()
        self._woken = False
        self._closed = False

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def soon(self, run: Callable[[], None]) -> None:
        self._loop.call_soon(run)

    def after(self, delay_ms: float, run: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_ms / 1000, run)

    def offload(
        self,
        lane: str,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        thread = self._lanes.get(lane)
        if thread is None:
            thread = self._lanes[lane] = _Lane(lane, self._finish)
        thread.jobs.put((work, done))

    def close(self) -> None:
        """Let the lanes finish what they were given, then end their threads.

        What they report from now on is dropped: the store is about to close.
        """
        self._closed = True
        for lane in self._lanes.values():
            lane.jobs.put(None)
        for lane in self._lanes.values():
            lane.thread.join(_JOIN_TIMEOUT_S)
        self._lanes.clear()

    def _finish(self, done: _Done, value: Any, error: BaseException | None) -> None:
        # Runs on a lane's thread.  Results that pile up before the loop looks share one wake-up:
        # the loop lowers the flag before it takes the results, so none can be left behind.
        self._finished.append((done, value, error))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False
        finished = self._finished
        if self._closed:
            finished.clear()
        while finished:
            done, value, error = finished.popleft()
            try:
                done(value, error)
            except BaseException:
                # The loop logs it; the results behind it must arrive all the same.
                self._loop.call_soon(self._deliver)
                raise


class _Lane:
    """One thread that does its jobs in order."""

    __slots__ = ("_finish", "jobs", "thread")

    def __init__(
        self, name: str, finish: Callable[[_Done, Any, BaseException | None], None]
    ) -> None:
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._finish = finish
        self.thread = Thread(target=self._run, name=f"pentalog-{name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (job := self.jobs.get()) is not None:
            work, done = job
            value: Any = None
            error: BaseException | None = None
            try:
                value = work()
            except BaseException as raised:  # handed to the owner, whatever it is
                error = raised
            self._finish(done, value, error)
            # A waiting thread must not keep the last job's buffers and files alive.
            del job, work, done, value, error

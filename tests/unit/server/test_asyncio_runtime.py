"""The runtime on a real loop: order of lanes, delivery of results, survival of mistakes."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from typing import Any

import pytest

from pentalog.server.asyncio_runtime import AsyncioRuntime
from pentalog.server.lifecycle import new_loop


@pytest.fixture
def loop() -> Any:
    loop = new_loop()
    yield loop
    loop.close()


def test_a_lane_does_its_work_in_order_and_reports_on_the_loop(loop: Any) -> None:
    runtime = AsyncioRuntime(loop)
    main = threading.get_ident()
    seen: list[tuple[int | None, BaseException | None, bool]] = []

    async def run() -> None:
        finished = asyncio.Event()

        def done(value: int | None, error: BaseException | None) -> None:
            seen.append((value, error, threading.get_ident() == main))
            if len(seen) == 100:
                finished.set()

        for number in range(100):
            runtime.offload("disk", lambda number=number: number, done)  # type: ignore[misc]
        await asyncio.wait_for(finished.wait(), 30)

    loop.run_until_complete(run())
    runtime.close()
    assert seen == [(number, None, True) for number in range(100)]


def test_an_error_reaches_done_and_a_bad_done_does_not_swallow_the_next(loop: Any) -> None:
    runtime = AsyncioRuntime(loop)
    mistakes: list[str] = []
    loop.set_exception_handler(lambda _, context: mistakes.append(str(context["exception"])))
    seen: list[str] = []

    async def run() -> None:
        finished = asyncio.Event()
        both_ran = threading.Event()

        def fail() -> None:
            raise OSError("disk on fire")

        def bad(value: object, error: BaseException | None) -> None:
            seen.append(str(error))
            raise ValueError("our bug")

        def good(value: object, error: BaseException | None) -> None:
            seen.append(str(value))
            finished.set()

        runtime.offload("disk", fail, bad)
        runtime.offload("disk", lambda: "fine", good)
        # Both results wait for one wake-up: a lane runs what it is given in order.
        runtime.offload("disk", both_ran.set, lambda value, error: None)
        assert both_ran.wait(30)
        await asyncio.wait_for(finished.wait(), 30)

    loop.run_until_complete(run())
    runtime.close()
    assert seen == ["disk on fire", "fine"]
    assert mistakes == ["our bug"]


def test_lanes_do_not_wait_for_each_other(loop: Any) -> None:
    runtime = AsyncioRuntime(loop)
    gate = threading.Event()

    async def run() -> None:
        finished = asyncio.Event()
        runtime.offload("slow", lambda: gate.wait(60), lambda value, error: None)
        runtime.offload("fast", lambda: None, lambda value, error: finished.set())
        await asyncio.wait_for(finished.wait(), 30)
        gate.set()

    loop.run_until_complete(run())
    runtime.close()


def test_timers_fire_in_order_and_can_be_cancelled(loop: Any) -> None:
    runtime = AsyncioRuntime(loop)
    seen: list[str] = []

    async def run() -> None:
        finished = asyncio.Event()
        runtime.after(400, finished.set)
        runtime.after(200, lambda: seen.append("one"))
        runtime.after(210, lambda: seen.append("cancelled")).cancel()
        runtime.soon(lambda: seen.append("soon"))
        await asyncio.wait_for(finished.wait(), 30)

    loop.run_until_complete(run())
    assert seen == ["soon", "one"]


def test_clocks() -> None:
    loop = asyncio.new_event_loop()
    runtime = AsyncioRuntime(loop)
    assert abs(runtime.now_ms() - time.time() * 1000) < 5000
    first = runtime.monotonic()
    assert runtime.monotonic() >= first
    loop.close()


def test_close_waits_for_what_was_given_and_ends_the_threads(loop: Any) -> None:
    runtime = AsyncioRuntime(loop)
    done: list[int] = []
    for number in range(10):
        runtime.offload("disk", partial(done.append, number), _ignore)
    runtime.close()
    assert done == list(range(10))
    assert not [thread for thread in threading.enumerate() if thread.name == "pentalog-disk"]


def _ignore(value: object, error: BaseException | None) -> None: ...


def test_what_a_lane_reports_after_the_runtime_is_closed_is_dropped(loop: Any) -> None:
    runtime = AsyncioRuntime(loop)
    seen: list[object] = []
    runtime.offload("open", partial(time.sleep, 0.05), lambda *outcome: seen.append(outcome))
    runtime.close()  # waits for the lane, so its report is there
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
    assert seen == []

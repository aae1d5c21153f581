"""The process around a broker: its event loop, its signals, its limits."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from pentalog.model.later import Later

T = TypeVar("T")
Loop: TypeAlias = asyncio.AbstractEventLoop

_log = logging.getLogger("pentalog.server")


def new_loop() -> Loop:
    """uvloop's where it runs, else the standard one.  What goes wrong in a callback is logged."""
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    loop.set_exception_handler(_log_mistake)
    return loop


def raise_file_limit() -> int:
    """Allow as many open files as this process may have; returns how many.

    Every connection needs two, every segment in use a few more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            _log.warning("cannot raise the limit of open files above %d: %s", soft, error)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def calm_garbage_collector() -> None:
    """Keep the collector from walking what lives for ever; stalls of the loop would follow.

    For a process that is nothing but a broker: what is alive now is never looked at again.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def run(main: Callable[[Loop], Coroutine[Any, Any, T]]) -> T:
    """Run `main` on a loop of its own until it returns."""
    loop = new_loop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.close()


def watch_signals(loop: Loop) -> asyncio.Event:
    """Set at the first SIGTERM or SIGINT.  The second one ends the process at once."""
    stopped = asyncio.Event()

    def take(number: int) -> None:
        if stopped.is_set():
            os._exit(128 + number)
        _log.info("stopping: answering what was accepted; again to stop at once")
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, take, number)
    return stopped


async def turns(count: int) -> None:
    """Let the loop do what is due, so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def arrival(later: Later[T]) -> T:
    """Wait for a value of the broker; raises the refusal, if that is what comes."""
    arrived = asyncio.Event()
    later.then(lambda _: arrived.set())
    await arrived.wait()
    return later.value


def _log_mistake(loop: Loop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
    _log.error(
        "a mistake of ours, please report it: %s", context.get("message", "?"), exc_info=error
    )

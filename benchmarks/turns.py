"""A pentalog broker that times the turns of its own loop, for `groups.py --turns`.

A callback that asks to be called again at once runs once per turn; what passes between two calls is
one turn.  The loop never sleeps then, so rates and CPU of such a broker say nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

FILE_VARIABLE = "TURNS_FILE"
PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import turns
turns.main()
"""


def longest(process: int, file: Path) -> dict[str, float]:
    """The broker's longest turn since it was last asked to begin, in ms of CPU and of time."""
    file.unlink(missing_ok=True)
    os.kill(process, signal.SIGUSR2)
    while True:
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, float] = json.loads(file.read_text())
            return found
        time.sleep(0.01)


def ruler_ms() -> float:
    """CPU time of a fixed piece of Python on this machine, the best of three."""
    best = float("inf")
    for _ in range(3):
        start_s = time.thread_time()
        sum({str(number): (number, b"x" * 16) for number in range(5_000)}[str(7)][0:1])
        best = min(best, (time.thread_time() - start_s) * 1e3)
    return best


class Stopwatch:
    def __init__(self) -> None:
        self.cpu_ms = 0.0
        self.wall_ms = 0.0
        self.skip = False
        """The turn under way does not count: the stopwatch was read in it."""

    def watch(self, loop: Any) -> None:
        cpu_s, at_s = time.thread_time(), time.monotonic()

        def turn() -> None:
            nonlocal cpu_s, at_s
            now_cpu_s, now_s = time.thread_time(), time.monotonic()
            if not self.skip:
                self.cpu_ms = max(self.cpu_ms, (now_cpu_s - cpu_s) * 1e3)
                self.wall_ms = max(self.wall_ms, (now_s - at_s) * 1e3)
            self.skip = False
            cpu_s, at_s = now_cpu_s, now_s
            loop.call_soon(turn)

        loop.call_soon(turn)


def main() -> None:
    """Be `pentalog` with a stopwatch: SIGUSR1 starts it anew, SIGUSR2 writes down what it shows."""
    from pentalog.cli.main import main as pentalog
    from pentalog.server import lifecycle

    stopwatch = Stopwatch()

    def write() -> None:
        shown = {"cpu_ms": stopwatch.cpu_ms, "wall_ms": stopwatch.wall_ms, "ruler_ms": ruler_ms()}
        Path(os.environ[FILE_VARIABLE]).write_text(json.dumps(shown))
        stopwatch.skip = True

    def begin() -> None:
        stopwatch.cpu_ms = stopwatch.wall_ms = 0.0

    def run(started: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        loop = lifecycle.new_loop()
        loop.add_signal_handler(signal.SIGUSR1, begin)
        loop.add_signal_handler(signal.SIGUSR2, write)
        stopwatch.watch(loop)
        try:
            return loop.run_until_complete(started(loop))
        finally:
            loop.close()

    lifecycle.run = run
    sys.exit(pentalog())

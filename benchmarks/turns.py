"""A pentalog broker that times the turns of its own loop, for `groups.py --turns`.

A callback that asks to be called again at once runs once per turn; what passes between two calls is
one turn.  The loop never sleeps then, so rates and CPU of such a broker say nothing.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import threading
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
    """The broker's longest turn since it was last asked to begin, in ms of CPU and of time.

    CPU without the garbage collector, whose longest run is `collector_ms`: what it walks over is
    what the whole process has allocated, and which request it interrupts is chance.
    """
    file.unlink(missing_ok=True)
    os.kill(process, signal.SIGUSR2)
    while True:
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, float] = json.loads(file.read_text())
            return found
        time.sleep(0.01)


RULER_MS = 20.0
"""What `ruler_ms` measures on the machine that the limits of turns were chosen on.

A turn that took less than this is within every limit.
"""


def ruler_ms() -> float:
    """The CPU time of a fixed piece of Python, the least of five runs: how fast is this machine?"""
    best_s = float("inf")
    for _ in range(5):
        start_s = time.thread_time()
        found: dict[int, bytes] = {}
        for number in range(_RULER_STEPS):
            found[number & 1023] = number.to_bytes(8, "big")
        best_s = min(best_s, time.thread_time() - start_s)
    return best_s * 1e3


_RULER_STEPS = 250_000


class Stopwatch:
    def __init__(self) -> None:
        self.cpu_ms = 0.0
        self.wall_ms = 0.0
        self.collector_ms = 0.0
        self.skip = False
        """The turn under way does not count: the stopwatch was read in it."""
        self._collected_s = 0.0
        """CPU time of the collector in this turn."""
        self._collecting_s = 0.0
        self._thread = threading.get_ident()

    def begin(self) -> None:
        self.cpu_ms = self.wall_ms = self.collector_ms = 0.0

    def watch(self, loop: Any) -> None:
        cpu_s, at_s = time.thread_time(), time.monotonic()
        gc.callbacks.append(self._collect)

        def turn() -> None:
            nonlocal cpu_s, at_s
            now_cpu_s, now_s = time.thread_time(), time.monotonic()
            if not self.skip:
                own_s = now_cpu_s - cpu_s - self._collected_s
                self.cpu_ms = max(self.cpu_ms, own_s * 1e3)
                self.wall_ms = max(self.wall_ms, (now_s - at_s) * 1e3)
                self.collector_ms = max(self.collector_ms, self._collected_s * 1e3)
            self.skip = False
            self._collected_s = 0.0
            cpu_s, at_s = now_cpu_s, now_s
            loop.call_soon(turn)

        loop.call_soon(turn)

    def _collect(self, phase: str, _: dict[str, int]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._collecting_s = time.thread_time()
        else:
            self._collected_s += time.thread_time() - self._collecting_s


def main() -> None:
    """Be `pentalog` with a stopwatch: SIGUSR1 starts it anew, SIGUSR2 writes down what it shows."""
    from pentalog.cli.main import main as pentalog
    from pentalog.server import lifecycle

    stopwatch = Stopwatch()

    def write() -> None:
        shown = {
            "cpu_ms": stopwatch.cpu_ms,
            "wall_ms": stopwatch.wall_ms,
            "collector_ms": stopwatch.collector_ms,
            # A turn that is short on every machine needs no ruler, which takes 0.1 s.
            "ruler_ms": ruler_ms() if stopwatch.cpu_ms > RULER_MS else RULER_MS,
        }
        Path(os.environ[FILE_VARIABLE]).write_text(json.dumps(shown))
        stopwatch.skip = True

    def run(started: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        loop = lifecycle.new_loop()
        loop.add_signal_handler(signal.SIGUSR1, stopwatch.begin)
        loop.add_signal_handler(signal.SIGUSR2, write)
        stopwatch.watch(loop)
        try:
            return loop.run_until_complete(started(loop))
        finally:
            loop.close()

    lifecycle.run = run
    sys.exit(pentalog())

"""A real broker that times the turns of its own loop, for walks over every request of a door.

A turn may take 20 ms of CPU on the machine that limit was chosen on; elsewhere as much more as a
fixed piece of Python takes there, measured in the broker's own process.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.server.broker_process import BrokerProcess, connect

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import turns

_STRICT: Final = bool(os.environ.get("PENTALOG_TORTURE"))
LIMIT_MS: Final = 20.0 if _STRICT else 200.0
"""Beside other tests, turns take longer: only gross ones are found there."""
REPETITIONS: Final = 3 if _STRICT else 1
"""What is measured is the median of so many repetitions, whatever the first of them showed.

One turn may be long by chance: another process took the cache, or the host took the processor.
"""
UNSYNCED: Final = ("--flush-interval-ms", "0")
"""Arguments of a broker that does not wait for the disk: walks count CPU, and make many topics."""


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Turn:
    """The longest turn of the loop while something was asked for."""

    cpu_ms: float
    limit_ms: float
    collector_ms: float = 0.0
    """Of the longest turn of the garbage collector, which is not counted in `cpu_ms`."""

    @property
    def short(self) -> bool:
        return self.cpu_ms <= self.limit_ms

    def __str__(self) -> str:
        return (
            f"{self.cpu_ms:.1f} ms of CPU in one turn; {self.limit_ms:.1f} ms are allowed "
            f"(and {self.collector_ms:.1f} ms of the garbage collector)"
        )


class TimedBroker:
    """A broker process with the listeners that a walk needs; `kafka` is always there."""

    def __init__(self, data: Path, *listeners: str, arguments: tuple[str, ...] = ()) -> None:
        self._file = data.parent / f"{data.name}-turns.json"
        listen = [part for name in listeners for part in ("--listen", f"{name}=127.0.0.1:0")]
        self._broker = BrokerProcess(
            data,
            *listen,
            *arguments,
            program=turns.PROGRAM,
            environment={turns.FILE_VARIABLE: str(self._file)},
        )

    def __enter__(self) -> TimedBroker:
        self._broker.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.kill()

    def port(self, listener: str = "kafka") -> int:
        """Return the port of a listener, as the broker reported it."""
        for line in self._broker.lines:
            name, _, address = line.partition(" ")
            if name == listener and ":" in address:
                return int(address.rpartition(":")[2])
        raise AssertionError(f"no listener {listener}: {self._broker.lines}")

    def connect(self, listener: str = "kafka") -> socket.socket:
        return connect(self.port(listener))

    def measure(self, act: Callable[[], object], prepare: Callable[[], object] = _nothing) -> Turn:
        """Run `act` several times, `prepare` before each; the median of their longest turns.

        `prepare` is not measured: it makes what an `act` uses up, so that all do the same.
        """
        found = []
        for _ in range(REPETITIONS):
            prepare()
            found.append(self._measure_once(act))
        return sorted(found, key=lambda turn: turn.cpu_ms / turn.limit_ms)[REPETITIONS // 2]

    @property
    def is_running(self) -> bool:
        return self._broker.is_running

    def _measure_once(self, act: Callable[[], object]) -> Turn:
        os.kill(self._broker.pid, signal.SIGUSR1)
        act()
        assert self._broker.is_running
        measured = turns.longest(self._broker.pid, self._file)
        limit_ms = LIMIT_MS * max(1.0, measured["ruler_ms"] / turns.RULER_MS)
        return Turn(measured["cpu_ms"], limit_ms, measured["collector_ms"])

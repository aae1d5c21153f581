"""A broker that things happen to: it is killed, stopped, cut off, and always comes back."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from tests.history.proxy import Proxy

import apache_kafka
import brokers
from pentalog.testing.ports import reserve_port

IS_KAFKA = os.environ.get("PENTALOG_TEST_SUBJECT") == "kafka"
"""Apache Kafka in place of ours: what fails there is the test's mistake."""

_SETTINGS = {
    "group_initial_rebalance_delay_ms": "0",
    "group_session_timeout_ms_min": "1000",
    # Small, so that they are reused and rolled many times in a run.
    "journal_bytes": "1048576",
    "topic_defaults": "segment.bytes=100000",
}


class Victim:
    """The broker and the proxy that stands before it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = reserve_port()
        self._proxy = Proxy()
        self._proxy.upstream = ("127.0.0.1", self._port)
        self._broker = self._started()

    @property
    def address(self) -> str:
        """Where clients go; the broker tells them no other address."""
        return self._proxy.address

    def kill(self, down_s: float) -> None:
        self._broker.kill()
        time.sleep(down_s)
        self._broker = self._started()

    def pause(self, duration_s: float) -> None:
        self._broker.process.send_signal(signal.SIGSTOP)
        time.sleep(duration_s)
        self._broker.process.send_signal(signal.SIGCONT)

    def drop(self) -> None:
        self._proxy.drop()

    def swallow(self, duration_s: float) -> None:
        """Answers get lost for a while, then the connections too."""
        self._proxy.swallow()
        time.sleep(duration_s)
        self._proxy.drop()

    def close(self) -> None:
        self._proxy.close()
        self._broker.kill()

    def _started(self) -> brokers.Broker:
        if IS_KAFKA:
            settings = {
                "advertised.listeners": f"PLAINTEXT://{self._proxy.address}",
                "group.initial.rebalance.delay.ms": "0",
                "group.min.session.timeout.ms": "1000",
            }
            return apache_kafka.start(self._directory, settings=settings, port=self._port)
        return brokers.start_pentalog(
            self._directory,
            settings=_SETTINGS,
            arguments=("--advertise", f"kafka={self._proxy.address}"),
            port=self._port,
        )


def trouble(
    victim: Victim, choice: random.Random, duration_s: float, enough: Callable[[], bool]
) -> list[str]:
    """Make trouble for `duration_s`, then until `enough` is true; return what was done, in order.

    The second condition makes a run prove as much on a busy machine as on a quiet one.
    """
    done: list[str] = []
    kinds: list[tuple[str, Callable[[], None]]] = [
        ("kill", lambda: victim.kill(choice.uniform(0, 0.3))),
        ("pause", lambda: victim.pause(choice.uniform(0.05, 1.0))),
        ("drop", victim.drop),
        ("swallow", lambda: victim.swallow(choice.uniform(0.01, 0.2))),
    ]
    deadline = time.monotonic() + duration_s
    while time.monotonic() < deadline or not enough():
        time.sleep(choice.uniform(0.1, 0.8))
        name, act = choice.choices(kinds, weights=[3, 2, 2, 2])[0]
        act()
        done.append(name)
    return done

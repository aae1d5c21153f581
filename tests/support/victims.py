"""A broker that is killed, and started again on the same port and data."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from pentalog.testing.ports import reserve_port

PATIENCE_S = 120.0


class Victim:
    def __init__(
        self, directory: Path, door: str = "kafka", topic_defaults: str = "segment.bytes=200000"
    ) -> None:
        self.data = directory / "data"
        self.stderr = directory / "stderr"
        self.port = reserve_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._door = door
        self._topic_defaults = topic_defaults

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        # A small journal is reused many times, small segments roll many times.
        with self.stderr.open("ab") as stderr:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pentalog", "start"),
                    *("--data", str(self.data)),
                    *("--listen", f"{self._door}={self.address}"),
                ],
                env=os.environ
                | {"PENTALOG_JOURNAL_BYTES": "1048576"}
                | {"PENTALOG_TOPIC_DEFAULTS": self._topic_defaults},
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"ready"):
                return
        self.process.stdout.close()
        code = self.process.wait()
        pytest.fail(f"no start, exit code {code}: {self.stderr.read_text()[-2000:]}")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def die_often(self, cycles: int, chance: Random, load: Callable[[], int], more: int) -> None:
        """Be killed and started again, each time when the load has grown at least so much."""
        for _ in range(cycles):
            enough = load() + more
            time.sleep(chance.uniform(0.02, 0.4))
            wait_until(lambda: load() >= enough, "hardly any load")  # noqa: B023
            self.kill()
            self.start()


def wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)

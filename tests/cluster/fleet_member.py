"""A gateway with several doors as a process that dies and comes back at the same addresses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import brokers
from pentalog.testing.ports import reserve_port


class FleetMember:
    """In front of a cluster, or, without one, a broker on a directory of its own."""

    def __init__(self, directory: Path, cluster: str | None, doors: Sequence[str]) -> None:
        directory.mkdir(exist_ok=True)
        self._stderr = directory / "gateway.stderr"
        self._kept = (
            ("--data", str(directory / "data"))
            if cluster is None
            else ("--engine", f"kafka://{cluster}")
        )
        self.addresses = {door: f"127.0.0.1:{reserve_port()}" for door in doors}
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def cpu_s(self) -> float:
        """CPU time it has used in this life."""
        return brokers.cpu_s(self.pid)

    def start(self) -> None:
        doors = [f"{door}={address}" for door, address in self.addresses.items()]
        with self._stderr.open("ab") as stderr:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pentalog", "start", "--console", "off"),
                    *self._kept,
                    *(word for door in doors for word in ("--listen", door)),
                ],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=os.environ,
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"ready"):
                return
        code = self.stop()
        pytest.fail(f"no start, exit code {code}: {self._stderr.read_text()[-2000:]}")

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Stop it in order and return its exit code; 0 if the test has ended it already."""
        return 0 if self._process is None else self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        process.send_signal(number)
        code = process.wait(60)
        process.stdout.close()
        return code

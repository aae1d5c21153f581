"""A gateway as a process of its own, on a port it keeps, so that it can die and come back."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import brokers


class GatewayProcess:
    """RustLog's door in front of a cluster, or, without one, on a directory of its own."""

    def __init__(self, directory: Path, cluster: str | None) -> None:
        self._stderr = directory / "gateway.stderr"
        self._kept = (
            ("--data", str(directory / "data"))
            if cluster is None
            else ("--engine", f"kafka://{cluster}")
        )
        self.address = f"127.0.0.1:{brokers.free_port()}"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with self._stderr.open("ab") as stderr:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pentalog", "start", *self._kept),
                    *("--listen", f"rustlog={self.address}", "--console", "off"),
                ],
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"ready"):
                return
        code = self._process.wait()
        pytest.fail(f"no start, exit code {code}: {self._stderr.read_text()[-2000:]}")

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.send_signal(number)
        code = self._process.wait(60)
        self._process.stdout.close()
        return code

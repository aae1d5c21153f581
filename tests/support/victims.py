"""A broker that is killed, and started again on the same port and data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pentalog.testing.ports import reserve_port


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

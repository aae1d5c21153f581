"""A broker as a child of this command, to be killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pentalog.cli.output import Refused
from pentalog.cli.private_files import make_private


class BrokerProcess:
    """Listens at Kafka's door only, at a free port; says what it has to say into a file."""

    def __init__(self, data: Path, log: Path, settings: Mapping[str, str]) -> None:
        self.data = data
        self.log = log
        self.address = ""
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        listen = ("--listen", "kafka=127.0.0.1:0")
        settings = {f"PENTALOG_{name.upper()}": value for name, value in self._settings.items()}
        make_private(self.log)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pentalog", "start", "--data", str(self.data), *listen],
                env=os.environ | settings,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"kafka listening on "):
                self.address = line.split()[-1].decode()
            if line.startswith(b"ready"):
                return
        code = self._process.wait()
        last = self.log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        raise Refused(f"the broker did not start, exit code {code}: {last}; see {self.log}")

    def kill(self) -> None:
        """As a crash ends it; nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

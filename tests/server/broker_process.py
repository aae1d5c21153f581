"""A real `pentalog start` for tests to talk to and to kill."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

_ENVIRONMENT = {name: value for name, value in os.environ.items() if "PENTALOG" not in name}
_COMMAND = (sys.executable, "-m", "pentalog.cli.main")
_HEADER = struct.Struct(">ihhih")


def pentalog(
    *arguments: str, environment: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*_COMMAND, *arguments],
        env=_ENVIRONMENT | (environment or {}),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=30,
    )


class BrokerProcess:
    """Started and ready when the block is entered, killed when it is left."""

    def __init__(
        self,
        data: Path,
        *arguments: str,
        listen: str = "127.0.0.1:0",
        program: str = "",
        environment: dict[str, str] | None = None,
    ) -> None:
        """`program` is Python that takes the place of the command `pentalog`."""
        command = (sys.executable, "-c", program) if program else _COMMAND
        # A file: nobody reads a pipe while the broker runs, and a full one would stop it.
        self._stderr = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115  # closed by `wait`
        self._process = subprocess.Popen(
            [*command, "start", "--data", str(data), "--listen", f"kafka={listen}", *arguments],
            env=_ENVIRONMENT | (environment or {}),
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        self.lines: list[str] = []
        self.errors = ""

    def __enter__(self) -> BrokerProcess:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith("ready"):
                return self
        self.kill()
        raise AssertionError(f"not ready: {self.errors}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def port(self) -> int:
        return int(self.lines[0].rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float = 30) -> int:
        """Read what is left to read; returns the exit code."""
        rest, _ = self._process.communicate(timeout=timeout_s)
        self.lines += rest.splitlines()
        if not self._stderr.closed:
            self._stderr.seek(0)
            self.errors = self._stderr.read()
            self._stderr.close()
        return self._process.returncode

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        if self._process.stdout is not None and not self._process.stdout.closed:
            self.wait()


def connect(port: int, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((host, port), timeout=60)


def request(key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """A Kafka request with a header of version 1 and no client id."""
    return _HEADER.pack(10 + len(body), key, version, correlation_id, -1) + body


def answer(client: socket.socket) -> tuple[int, bytes]:
    """Correlation id and body of the next answer."""
    (length,) = struct.unpack(">i", _exactly(client, 4))
    whole = _exactly(client, length)
    return struct.unpack_from(">i", whole)[0], whole[4:]


def _exactly(client: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        piece = client.recv(count - len(got))
        if not piece:
            raise EOFError(f"the broker hung up after {len(got)} of {count} bytes")
        got += piece
    return got

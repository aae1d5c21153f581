"""A broker as a separate process: its address, its data, and what it costs the machine.

Nothing here knows which broker it is, except `start_pentalog`, which starts ours the way a user
would.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0

_METADATA_REQUEST = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 0)


class BrokerFailed(Exception):
    """The broker did not start, or ended before it was asked to."""


@dataclass(slots=True)
class Broker:
    """One running broker process."""

    name: str
    address: str
    data: Path
    log: Path
    process: subprocess.Popen[bytes] = field(repr=False)
    doors: Mapping[str, str] = field(default_factory=dict)
    """Address of every listener, by name, as the process has printed them."""
    start_s: float = 0.0
    """From starting the process to its first Metadata answer."""

    @property
    def cpu_s(self) -> float:
        """CPU time of all threads that ever ran in the process, in nanosecond steps."""
        return cpu_s(self.process.pid)

    @property
    def rss_bytes(self) -> int:
        """Memory held now."""
        return self._status_bytes("VmRSS")

    @property
    def rss_peak_bytes(self) -> int:
        """Most memory ever held."""
        return self._status_bytes("VmHWM")

    def stop(self) -> int:
        """End the process politely, then not; gives its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        code = self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def kill(self) -> None:
        """End the process without warning, as a power cut of the process would."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _status_bytes(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
        if found is None:
            raise BrokerFailed(f"{self.name} has ended; see {self.log}")
        return int(found[1]) * 1024


def cpu_s(process_id: int) -> float:
    """CPU time of a process; its clock is named as clock_getcpuclockid(3) would name it."""
    return time.clock_gettime((~process_id << 3) | 2)


def open_doors(*names: str) -> tuple[str, ...]:
    """Arguments that open these listeners on free ports; `Broker.doors` has the addresses."""
    return tuple(word for name in names for word in ("--listen", f"{name}=127.0.0.1:0"))


def wait_for_metadata(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the broker at `address` has answered a Metadata request with itself in it."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError):
            if _metadata_brokers(address) > 0:
                return
        time.sleep(0.005)
    tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
    process.kill()
    raise BrokerFailed(f"no Metadata answer from {address}; the end of {log}:\n{tail}")


def start_pentalog(
    directory: Path,
    *,
    settings: Mapping[str, str] | None = None,
    arguments: tuple[str, ...] = (),
    name: str = "pentalog",
    port: int = 0,
    program: str = "from pentalog.cli.main import main; main()",
    environment: Mapping[str, str] | None = None,
    under: tuple[str, ...] = (),
    checkout: Path = ROOT,
) -> Broker:
    """Start `pentalog start`, on a free port unless one is given.

    `settings` are environment names without prefix, `environment` others; `under` is a program
    that runs it, with its options; `checkout` is the source tree to run.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "pentalog.stderr"
    variables = {**os.environ, **(environment or {}), "PYTHONPATH": str(checkout / "src")}
    # The printed lines are how we learn the port; a buffered pipe would hold them back.
    variables["PYTHONUNBUFFERED"] = "1"
    for key, value in (settings or {}).items():
        variables[f"PENTALOG_{key.upper()}"] = value
    data = directory / "data"
    command = [
        *under,
        sys.executable,
        "-c",
        program,
        "start",
        "--listen",
        f"kafka=127.0.0.1:{port}",
        "--data",
        str(data),
        *arguments,
    ]
    started_at = time.monotonic()
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=variables, cwd=directory
        )
    doors = _doors_when_ready(process, log)
    wait_for_metadata(doors["kafka"], process, log)
    return Broker(
        name, doors["kafka"], data, log, process, doors, start_s=time.monotonic() - started_at
    )


def start_gateway(
    directory: Path,
    cluster: str,
    arguments: tuple[str, ...],
    *,
    settings: Mapping[str, str] | None = None,
) -> Broker:
    """Start `pentalog start` in front of a cluster; its address is the cluster's."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "gateway.stderr"
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    for key, value in (settings or {}).items():
        variables[f"PENTALOG_{key.upper()}"] = value
    command = [sys.executable, "-m", "pentalog", "start", "--console", "off"]
    started_at = time.monotonic()
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [*command, "--engine", f"kafka://{cluster}", *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=variables,
            cwd=directory,
        )
    doors = _doors_when_ready(process, log)
    return Broker(
        "gateway", cluster, directory, log, process, doors, start_s=time.monotonic() - started_at
    )


@contextlib.contextmanager
def stopping(broker: Broker) -> Iterator[Broker]:
    """Stop `broker` at the end, whatever happens."""
    try:
        yield broker
    finally:
        broker.stop()


def _doors_when_ready(process: subprocess.Popen[bytes], log: Path) -> dict[str, str]:
    """Address of every listener, by name, once the process says that it is ready."""
    assert process.stdout is not None
    doors: dict[str, str] = {}
    lines: list[str] = []
    for raw in process.stdout:
        line = raw.decode(errors="replace")
        lines.append(line)
        found = re.match(r"(\S+) listening on (\S+:\d+)$", line)
        if found is not None:
            doors[found[1]] = found[2]
        if line.startswith("ready"):
            return doors
    process.wait()
    process.stdout.close()
    tail = log.read_text(errors="replace")[-2000:]
    raise BrokerFailed(
        f"pentalog ended with {process.returncode} before it was ready\n{''.join(lines)}{tail}"
    )


def _metadata_brokers(address: str) -> int:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(struct.pack(">i", len(_METADATA_REQUEST)) + _METADATA_REQUEST)
        (size,) = struct.unpack(">i", _received(connection, 4))
        answer = _received(connection, size)
        _, brokers = struct.unpack_from(">ii", answer)
        count: int = brokers
        return count


def _received(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionResetError(f"closed after {len(parts)} of {size} bytes")
        parts += part
    return bytes(parts)

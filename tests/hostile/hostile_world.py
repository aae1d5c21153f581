"""A real broker under attack, with an unrelated client that probes it meanwhile.

Costs are compared with a *ruler*, what the same broker spends on a fixed number of small requests
in the same run, so that no assertion depends on the speed of the machine.  Of a probe's wait only
that part counts in which the broker computed: on a busy machine both of them wait for a processor.
The wait ends when the answer arrives at the probe's socket, by the clock of the kernel: the probe
itself may be scheduled much later, while the broker computes for other clients.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.server.broker_process import BrokerProcess, answer, connect, request

API_VERSIONS: Final = request(18, 0, 1, b"")
RULER_REQUESTS: Final = 2_000
_PROBE_INTERVAL_S: Final = 0.002
_NOISE: Final = 1 if os.environ.get("PENTALOG_TORTURE") else 3
"""Beside other tests, the same work takes more CPU time, because they share caches and cores.  A
loop that an attack stopped kept the probe waiting for 0.1 to 16 s."""
_CPU_CLOCK: Final = 2
"""CPUCLOCK_SCHED: the CPU time of a process, in nanoseconds."""
_SO_TIMESTAMPNS: Final = 35
"""Have the kernel report when it received what `recvmsg` returns; `socket` has no name for it."""
_TIMESPEC: Final = struct.Struct("@qq")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a broker spent between two moments, and how long the probe waited for it."""

    cpu_s: float
    memory_bytes: int
    """Growth of the largest resident size."""
    wait_s: float
    """The longest that the broker computed while the probe waited for one answer."""
    ruler_s: float
    """CPU seconds of `RULER_REQUESTS` small requests."""
    idle_wait_s: float
    """The same while nothing else was asked for."""

    def assert_bounded(self, *, rulers: float, memory_mib: int) -> None:
        """Fail if the attack cost more CPU, memory or waiting than it may."""
        assert self.cpu_s <= rulers * self.ruler_s, f"{self}: more than {rulers} rulers of CPU"
        assert self.memory_bytes <= memory_mib << 20, f"{self}: more than {memory_mib} MiB"
        self.assert_wait()

    def assert_wait(self, rulers: float = 0.5) -> None:
        """Fail if the probe waited longer than it may, which is stricter with `make torture`."""
        patience_s = _NOISE * rulers * self.ruler_s + 10 * self.idle_wait_s
        assert self.wait_s <= patience_s, f"{self}: the probe waited more than {patience_s:.3f} s"


class HostileWorld:
    """A broker process with the listeners that an attack needs; `kafka` is always there."""

    def __init__(self, data: Path, *listeners: str, arguments: tuple[str, ...] = ()) -> None:
        listen = [part for name in listeners for part in ("--listen", f"{name}=127.0.0.1:0")]
        self.broker = BrokerProcess(data, *listen, *arguments)
        self._ruler_s = 0.0
        self._idle_wait_s = 0.0

    def __enter__(self) -> HostileWorld:
        with contextlib.ExitStack() as stack:
            self.broker.__enter__()
            stack.callback(self.broker.kill)
            self._ruler_s = self._measure_ruler()
            with self._probing() as waits:
                _exchange(self.port("kafka"), 200)
            self._idle_wait_s = max(waits)
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.kill()

    def port(self, listener: str) -> int:
        """Return the port of a listener, as the broker reported it."""
        for line in self.broker.lines:
            name, _, address = line.partition(" ")
            if name == listener and ":" in address:
                return int(address.rpartition(":")[2])
        raise AssertionError(f"no listener {listener}: {self.broker.lines}")

    def connect(self, listener: str = "kafka", source: str = "") -> socket.socket:
        """Connect, from another address of this machine if `source` is one."""
        if not source:
            return connect(self.port(listener))
        address = ("127.0.0.1", self.port(listener))
        return socket.create_connection(address, timeout=60, source_address=(source, 0))

    def measure(self, attack: Callable[[], object]) -> Cost:
        """Run an attack and return its cost; the broker must be alive and answer afterwards."""
        self._reset_peak()
        before_s, before_bytes = self.cpu_s(), self._memory("VmRSS")
        with self._probing() as waits:
            attack()
            _exchange(self.port("kafka"), 20)
        peak = self._memory("VmHWM")
        assert self.broker.is_running
        return Cost(
            cpu_s=self.cpu_s() - before_s,
            memory_bytes=max(0, peak - before_bytes),
            wait_s=max(waits),
            ruler_s=self._ruler_s,
            idle_wait_s=self._idle_wait_s,
        )

    def cpu_s(self) -> float:
        """Return the CPU seconds that the broker has used so far."""
        # What clock_getcpuclockid(3) returns for another process.
        return time.clock_gettime(~self.broker.pid << 3 | _CPU_CLOCK)

    def memory_bytes(self) -> int:
        """Return the resident size of the broker."""
        return self._memory("VmRSS")

    def _memory(self, name: str) -> int:
        for line in Path(f"/proc/{self.broker.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
        raise AssertionError(f"no {name}")

    def _reset_peak(self) -> None:
        # 5 resets VmHWM, see proc(5); a container may forbid it, then the peak is the older one.
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.broker.pid}/clear_refs").write_text("5")

    def _measure_ruler(self) -> float:
        _exchange(self.port("kafka"), 200)
        before_s = self.cpu_s()
        _exchange(self.port("kafka"), RULER_REQUESTS)
        return self.cpu_s() - before_s

    @contextlib.contextmanager
    def _probing(self) -> Iterator[list[float]]:
        """Send small requests from another thread; yields what each had to wait for."""
        waits: list[float] = []
        over = threading.Event()
        client = self.connect()
        client.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        # A client that the broker knows: connections are accepted one by one.
        ask(client, API_VERSIONS)

        def probe() -> None:
            while not over.is_set():
                asked_s, start_s = time.time(), self.cpu_s()
                client.sendall(API_VERSIONS)
                arrived_s = _arrival(client)
                waits.append(min(self.cpu_s() - start_s, arrived_s - asked_s))
                over.wait(_PROBE_INTERVAL_S)

        thread = threading.Thread(target=probe, daemon=True)
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(_PROBE_INTERVAL_S / 4)
        thread.start()
        try:
            yield waits
        finally:
            over.set()
            thread.join(60)
            client.close()
            sys.setswitchinterval(interval_s)
        assert not thread.is_alive(), "the probe got no answer for a minute"
        assert waits, "the probe got no answer"


def compact(text: str | bytes) -> bytes:
    """Encode a string or bytes as Kafka's flexible versions do."""
    data = text.encode() if isinstance(text, str) else text
    return uvarint(len(data) + 1) + data


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(text: str) -> bytes:
    """Encode a string as Kafka's older versions do."""
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def flexible(key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """Encode a Kafka request with a header of version 2 and no client id."""
    return request(key, version, correlation_id, b"\0" + body)


def ask(client: socket.socket, frame: bytes) -> bytes:
    """Send one Kafka request and return the body of its answer."""
    client.sendall(frame)
    return answer(client)[1]


def _arrival(client: socket.socket) -> float:
    """Receive one answer and return the time at which the kernel received the end of it."""
    got, arrived_s = b"", 0.0
    while len(got) < 4 or len(got) < 4 + struct.unpack_from(">i", got)[0]:
        piece, notes, _, _ = client.recvmsg(1 << 16, socket.CMSG_SPACE(_TIMESPEC.size))
        assert piece, "the broker closed the connection of the probe"
        got += piece
        # The kernel begins to note times a moment after the first socket asks for them.
        seconds, nanoseconds = _TIMESPEC.unpack(notes[0][2]) if notes else (time.time(), 0)
        arrived_s = seconds + nanoseconds / 1e9
    return arrived_s


def _exchange(port: int, count: int) -> None:
    with connect(port) as client:
        for _ in range(count):
            client.sendall(API_VERSIONS)
            answer(client)

"""Load on one door: several connections, each with requests under way, and what it cost."""

from __future__ import annotations

import os
import re
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pentalog.cli.advice import advised
from pentalog.cli.bench_doors import Door, Plan, Talk
from pentalog.cli.output import Refused
from pentalog.clients.blipmq import BlipmqError
from pentalog.clients.blipmq import ConnectionLost as BlipmqLost
from pentalog.clients.kafka.errors import KafkaFailed
from pentalog.clients.rustlog import ConnectionLost, RustLogError

_LISTEN: Final = "0A"
_IDLE_S: Final = 30.0
"""A reader that has got nothing for so long gives up."""


@dataclass(slots=True)
class Measured:
    """One run, as far as it has come."""

    direction: str
    records: int = 0
    seconds: float = 0.0
    bytes: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    broker_cpu_s: float | None = None

    @property
    def rate(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def megabytes(self) -> float:
        return self.bytes / self.seconds / 1e6 if self.seconds else 0.0

    def percentile(self, share: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    @property
    def cpu_us(self) -> float | None:
        """CPU of the broker per record."""
        if self.broker_cpu_s is None or not self.records:
            return None
        return self.broker_cpu_s * 1e6 / self.records


@dataclass(frozen=True, slots=True)
class Load:
    door: Door
    plan: Plan
    connections: int
    records: int
    in_flight: int


def produce(load: Load, watch: Callable[[Measured], None]) -> Measured:
    requests = -(-load.records // load.plan.batch)
    return _run("produce", load, _shares(requests, load.connections), _write, watch)


def consume(load: Load, watch: Callable[[Measured], None]) -> Measured:
    shares = _shares(load.records, load.connections)
    return _run("consume", load, shares, _read, watch)


def _shares(total: int, parts: int) -> list[int]:
    return [total // parts + (part < total % parts) for part in range(parts)]


def _run(
    direction: str,
    load: Load,
    shares: list[int],
    work: Callable[[Load, Talk, int, Measured, threading.Event], None],
    watch: Callable[[Measured], None],
) -> Measured:
    """`watch` is called a few times a second, and once at the end."""
    talks = [load.door.talk(load.plan, index) for index in range(load.connections)]
    if direction == "consume" and load.door.follows:
        _fill(load, talks[0])
    found = Measured(direction)
    failures: list[BaseException] = []
    stop = threading.Event()

    def one(talk: Talk, share: int) -> None:
        try:
            work(load, talk, share, found, stop)
        except BaseException as error:
            failures.append(error)
            stop.set()

    pid = broker_pid(load.plan.server)
    cpu, started = _cpu_s(pid), time.perf_counter()
    threads = [
        threading.Thread(target=one, args=(talk, share), daemon=True)
        for talk, share in zip(talks, shares, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.25)
                found.seconds = time.perf_counter() - started
                watch(found)
    finally:
        stop.set()
        found.seconds = time.perf_counter() - started
        after = _cpu_s(pid)
        for talk in talks:
            talk.close()
    found.broker_cpu_s = None if cpu is None or after is None else after - cpu
    if failures:
        raise failures[0]
    watch(found)
    return found


@contextmanager
def refusing(server: str) -> Iterator[None]:
    """Inside, what any door's client may raise becomes one line."""
    try:
        yield
    except (KafkaFailed, RustLogError, BlipmqError) as error:
        raise Refused(advised(f"{server} refused: {error}")) from error
    except (ConnectionLost, BlipmqLost, struct.error) as error:
        raise Refused(f"{server}: {error}; does another door listen there?") from error


def _write(load: Load, talk: Talk, share: int, found: Measured, stop: threading.Event) -> None:
    sent: deque[float] = deque()
    batch, size = load.plan.batch, load.plan.batch * load.plan.size
    for _ in range(share):
        if stop.is_set():
            return
        if len(sent) == load.in_flight:
            _settle(talk, sent, found, batch, size)
        sent.append(time.perf_counter())
        talk.write()
    while sent:
        _settle(talk, sent, found, batch, size)


def _settle(talk: Talk, sent: deque[float], found: Measured, batch: int, size: int) -> None:
    talk.written()
    found.latencies_ms.append((time.perf_counter() - sent.popleft()) * 1000)
    found.records += batch
    found.bytes += size


def _read(load: Load, talk: Talk, share: int, found: Measured, stop: threading.Event) -> None:
    got, heard = 0, time.perf_counter()
    while got < share and not stop.is_set():
        asked = time.perf_counter()
        count = talk.read()
        now = time.perf_counter()
        if not count:
            if now - heard > _IDLE_S:
                raise Refused(f"only {got} of {share} records could be read; write more first")
            continue
        heard = now
        got += count
        found.latencies_ms.append((now - asked) * 1000)
        found.records += count
        found.bytes += count * load.plan.size


def _fill(load: Load, talk: Talk) -> None:
    """For readers that see only what comes after them."""
    for _ in range(-(-load.records // load.plan.batch)):
        talk.write()
        talk.written()


# The broker's process, if it is on this machine


def broker_pid(server: str) -> int | None:
    """Who listens at a local port; None if that cannot be told, or is ourselves."""
    port = int(server.rpartition(":")[2])
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                inodes.add(words[9])
    if not inodes:
        return None
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid() and _holds(process, inodes):
            return int(process.name)
    return None


def _holds(process: Path, inodes: set[str]) -> bool:
    try:
        links = [os.readlink(path) for path in (process / "fd").iterdir()]
    except OSError:
        return False
    return any(
        (found := re.fullmatch(r"socket:\[(\d+)\]", one)) and found[1] in inodes for one in links
    )


def _cpu_s(pid: int | None) -> float | None:
    if pid is None:
        return None
    try:
        # The clock of another process, as clock_getcpuclockid(3) would name it.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None

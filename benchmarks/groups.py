"""Many groups, and one large group: how long until they are stable, and who waits meanwhile.

The wait is seen from outside: a process of its own asks a small question (ApiVersions) every few
milliseconds on a connection of its own; its slowest answer is the longest the broker was busy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

import apache_kafka
import machine
import turns
from brokers import Broker, start_pentalog, stopping

RESULTS = machine.CACHE / "groups.jsonl"
TOPIC = "groups"
PARTITIONS = 1000
PROBE_EVERY_S = 0.003
HEARTBEAT_EVERY_S = 3.0
SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 60_000
PATIENCE_S = 120.0
_SUBSCRIPTION = struct.pack(">hih", 0, 1, len(TOPIC)) + TOPIC.encode() + struct.pack(">i", -1)

# Requests, each in the newest version without compact encoding.
_COORDINATOR, _JOIN, _HEARTBEAT, _SYNC, _COMMIT = (10, 0), (11, 5), (12, 3), (14, 3), (8, 7)
_API_VERSIONS = (18, 0)
_OK, _REBALANCING, _MEMBER_ID_REQUIRED = 0, 27, 79
_STALE_GENERATION = 22
_COORDINATOR_NOT_READY = (14, 15, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    groups: int
    members: int
    """Per group."""
    delay_ms: int
    """How long a new group waits for more members, on both brokers."""

    def scaled(self, share: float) -> Scenario:
        if self.groups > 1:
            groups, members = max(round(self.groups * share), 1), self.members
        else:
            groups, members = 1, max(round(self.members * share), 1)
        return Scenario(name=self.name, groups=groups, members=members, delay_ms=self.delay_ms)

    @property
    def title(self) -> str:
        return (
            f"{self.groups:,} group(s) of {self.members:,} member(s), {PARTITIONS:,} partitions,"
            f" initial delay {self.delay_ms} ms"
        )


SCENARIOS = (
    Scenario(name="many-groups", groups=2000, members=1, delay_ms=0),
    # Without a delay the first member would be a group alone and all others a second generation.
    Scenario(name="large-group", groups=1, members=200, delay_ms=1000),
)


@dataclass(frozen=True, slots=True)
class Waits:
    """What the probe saw in one phase, in milliseconds."""

    probes: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Measured:
    scenario: str
    broker: str
    stable_s: float
    """From the first JoinGroup to the last member that has its part in the final generation."""
    generations: int
    """Of the group that needed most."""
    forming_cpu_s: float
    steady_cpu_s_per_s: float
    heartbeat_max_ms: float
    commit_max_ms: float
    idle: Waits
    forming: Waits
    steady: Waits


class Refused(Exception):
    """The broker answered what a member cannot go on with."""


class Line:
    """One connection; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str) -> Line:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, api: tuple[int, int], body: bytes) -> Answer:
        self._writer.write(_framed(api, body))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        # The first four bytes repeat the number of the request.
        return Answer(await self._reader.readexactly(size), at=4)

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@dataclass(slots=True)
class Answer:
    """The bytes of an answer, read from front to back."""

    data: bytes
    at: int = 0

    def int16(self) -> int:
        return self._number(2)

    def int32(self) -> int:
        return self._number(4)

    def text(self) -> str:
        return self._taken(self.int16()).decode()

    def blob(self) -> bytes:
        return self._taken(self.int32())

    def _number(self, size: int) -> int:
        return int.from_bytes(self._taken(size), "big", signed=True)

    def _taken(self, size: int) -> bytes:
        start = self.at
        self.at += max(size, 0)
        return self.data[start : self.at]


@dataclass(slots=True)
class Member:
    """One member of a group, from its first JoinGroup on."""

    line: Line
    group: str
    number: int
    member_id: str = ""
    generation: int = -1
    assigned: list[int] = field(default_factory=list)
    stable_at: float = 0.0

    async def join(self) -> None:
        """Join, plan if chosen to, and learn the own part; again until that holds."""
        while True:
            answer = await self.line.ask(_JOIN, self._join_body())
            answer.int32()
            error = answer.int16()
            if error in _COORDINATOR_NOT_READY:
                await asyncio.sleep(0.1)
                continue
            if error not in (_OK, _MEMBER_ID_REQUIRED, _REBALANCING):
                raise Refused(f"JoinGroup of {self.group}: error {error}")
            generation = answer.int32()
            answer.text()
            leader = answer.text()
            self.member_id = answer.text() or self.member_id
            if error == _OK and await self._sync(generation, leader, answer):
                return

    async def heartbeat(self) -> bool:
        """Whether the generation still holds."""
        error = await self._error_of(_HEARTBEAT, self._fence(self.generation))
        if error not in (_OK, _REBALANCING, _STALE_GENERATION):
            raise Refused(f"Heartbeat of {self.group}: error {error}")
        return error == _OK

    async def commit(self) -> None:
        """Commit one offset for every assigned partition."""
        partitions = b"".join(struct.pack(">iqih", at, 1, -1, 0) for at in self.assigned)
        topics = struct.pack(">i", 1) + _text(TOPIC) + struct.pack(">i", len(self.assigned))
        body = self._fence(self.generation) + topics + partitions
        answer = await self.line.ask(_COMMIT, body)
        answer.int32()
        answer.int32()
        answer.text()
        for _ in range(answer.int32()):
            partition, error = answer.int32(), answer.int16()
            if error not in (_OK, _REBALANCING):
                raise Refused(f"OffsetCommit of {self.group}, {partition}: error {error}")

    async def _sync(self, generation: int, leader: str, joined: Answer) -> bool:
        members = []
        for _ in range(joined.int32()):
            members.append(joined.text())
            joined.text()
            joined.blob()
        planned = self._plan(members) if leader == self.member_id else struct.pack(">i", 0)
        answer = await self.line.ask(_SYNC, self._fence(generation) + planned)
        answer.int32()
        error = answer.int16()
        if error in (_REBALANCING, _STALE_GENERATION):
            return False
        if error != _OK:
            raise Refused(f"SyncGroup of {self.group}: error {error}")
        part = answer.blob()
        start = len(_SUBSCRIPTION) - 4
        (count,) = struct.unpack_from(">i", part, start)
        self.assigned = list(struct.unpack_from(f">{count}i", part, start + 4))
        self.generation = generation
        self.stable_at = time.monotonic()
        return True

    def _plan(self, members: Sequence[str]) -> bytes:
        """Deal the partitions out; a group of one, as in many groups, takes five of them."""
        share = PARTITIONS // 200
        parts = bytearray(struct.pack(">i", len(members)))
        for place, member_id in enumerate(members):
            if len(members) > 1:
                mine = list(range(place, PARTITIONS, len(members)))
            else:
                mine = [(self.number * share + i) % PARTITIONS for i in range(share)]
            listed = struct.pack(f">i{len(mine)}i", len(mine), *mine)
            parts += _text(member_id) + _blob(_SUBSCRIPTION[:-4] + listed + struct.pack(">i", -1))
        return bytes(parts)

    async def _error_of(self, api: tuple[int, int], body: bytes) -> int:
        answer = await self.line.ask(api, body)
        answer.int32()
        return answer.int16()

    def _join_body(self) -> bytes:
        timeouts = struct.pack(">ii", SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS)
        protocols = struct.pack(">i", 1) + _text("range") + _blob(_SUBSCRIPTION)
        who = _text(self.group) + timeouts + _text(self.member_id) + struct.pack(">h", -1)
        return who + _text("consumer") + protocols

    def _fence(self, generation: int) -> bytes:
        fence = struct.pack(">i", generation) + _text(self.member_id)
        return _text(self.group) + fence + struct.pack(">h", -1)


class Probe:
    """A process that asks ApiVersions every few milliseconds until told to stop."""

    def __init__(self, address: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._told, theirs = context.Pipe()
        self._process = context.Process(target=_probe, args=(address, theirs), daemon=True)
        self._process.start()
        self._told.recv()

    def phase(self) -> Waits:
        """What was seen since the last call."""
        self._told.send("phase")
        seen: list[float] = self._told.recv()
        waits = sorted(seen) or [0.0]

        def at(share: float) -> float:
            return waits[min(int(len(waits) * share), len(waits) - 1)] * 1e3

        return Waits(len(waits), at(0.5), at(0.99), at(1.0))

    def stop(self) -> None:
        self._told.send("stop")
        self._process.join()


def _probe(address: str, told: Connection) -> None:
    host, _, port = address.rpartition(":")
    question = _framed(_API_VERSIONS, b"")
    waits: list[float] = []
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        told.send("ready")
        while True:
            if told.poll(PROBE_EVERY_S):
                if told.recv() == "stop":
                    return
                told.send(waits)
                waits = []
            asked_at = time.monotonic()
            connection.sendall(question)
            wanted = 4 + int.from_bytes(_received(connection, 4), "big")
            _received(connection, wanted - 4)
            waits.append(time.monotonic() - asked_at)


def _received(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionResetError("the broker hung up on the probe")
        parts += part
    return bytes(parts)


def _framed(api: tuple[int, int], body: bytes) -> bytes:
    key, version = api
    header = struct.pack(">hhi", key, version, 0) + _text("groups")
    return struct.pack(">i", len(header) + len(body)) + header + body


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _blob(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


async def _find_coordinator(address: str) -> None:
    """Ask until there is one: Kafka makes its topic of offsets only when somebody asks."""
    line = await Line.open(address)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        answer = await line.ask(_COORDINATOR, _text("any"))
        if answer.int16() == _OK:
            await line.close()
            return
        await asyncio.sleep(0.1)
    raise Refused("no group coordinator within two minutes")


async def _live(member: Member, until: float, waits: dict[str, list[float]]) -> None:
    """Heartbeat and commit like a consumer, spread over the interval."""
    await asyncio.sleep(member.number % 997 / 997 * HEARTBEAT_EVERY_S)
    while time.monotonic() < until:
        asked_at = time.monotonic()
        held = await member.heartbeat()
        waits["heartbeat"].append(time.monotonic() - asked_at)
        if not held:
            await member.join()
        asked_at = time.monotonic()
        await member.commit()
        waits["commit"].append(time.monotonic() - asked_at)
        await asyncio.sleep(HEARTBEAT_EVERY_S)


async def _all_stable(members: Sequence[Member]) -> float:
    """Join all at once; gives the time of the last member to settle in its final generation."""
    await asyncio.gather(*(member.join() for member in members))
    while True:
        # Who was early may have missed a rebalance; only a heartbeat tells.
        held = await asyncio.gather(*(member.heartbeat() for member in members))
        behind = [member for member, holds in zip(members, held, strict=True) if not holds]
        if not behind:
            return max(member.stable_at for member in members)
        await asyncio.gather(*(member.join() for member in behind))


def _check_parts(scenario: Scenario, members: Sequence[Member]) -> None:
    """A time counts only if the partitions are dealt out as planned."""
    if scenario.groups == 1:
        dealt = sorted(partition for member in members for partition in member.assigned)
        if dealt != list(range(PARTITIONS)):
            raise SystemExit(f"{scenario.name}: {len(dealt)} parts dealt out, not {PARTITIONS}")
    elif any(not member.assigned for member in members):
        raise SystemExit(f"{scenario.name}: a member was left without a part")


async def _run(broker: Broker, scenario: Scenario, *, steady_s: float) -> Measured:
    await _find_coordinator(broker.address)
    members = []
    for number in range(scenario.groups * scenario.members):
        line = await Line.open(broker.address)
        members.append(Member(line, f"{scenario.name}-{number // scenario.members}", number))
    probe = Probe(broker.address)
    await asyncio.sleep(1)
    probe.phase()
    await asyncio.sleep(2)
    idle = probe.phase()
    cpu_before, began_at = broker.cpu_s, time.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        stable_s = await _all_stable(members) - began_at
    forming, forming_cpu_s = probe.phase(), broker.cpu_s - cpu_before
    _check_parts(scenario, members)
    waits: dict[str, list[float]] = {"heartbeat": [0.0], "commit": [0.0]}
    cpu_before, began_at = broker.cpu_s, time.monotonic()
    await asyncio.gather(*(_live(member, began_at + steady_s, waits) for member in members))
    steady_cpu_s = broker.cpu_s - cpu_before
    lived_s = time.monotonic() - began_at
    steady = probe.phase()
    probe.stop()
    for member in members:
        await member.line.close()
    return Measured(
        scenario=scenario.name,
        broker=broker.name,
        stable_s=stable_s,
        generations=max(member.generation for member in members),
        forming_cpu_s=forming_cpu_s,
        steady_cpu_s_per_s=steady_cpu_s / lived_s,
        heartbeat_max_ms=max(waits["heartbeat"]) * 1e3,
        commit_max_ms=max(waits["commit"]) * 1e3,
        idle=idle,
        forming=forming,
        steady=steady,
    )


def _started(name: str, directory: Path, delay_ms: int, turns_file: Path | None) -> Broker:
    if name == "kafka":
        settings = {"group.initial.rebalance.delay.ms": str(delay_ms)}
        return apache_kafka.start(directory, settings=settings)
    settings = {"group_initial_rebalance_delay_ms": str(delay_ms)}
    if turns_file is None:
        return start_pentalog(directory, settings=settings)
    return start_pentalog(
        directory,
        settings=settings,
        program=turns.PROGRAM,
        environment={turns.FILE_VARIABLE: str(turns_file)},
    )


def _create_topic(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 4})
    for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        made.result(60)


def _measure(
    name: str, scenario: Scenario, work: Path, *, steady_s: float, timed: bool
) -> Measured:
    """One scenario on a broker of its own."""
    directory = work / f"{name}-{scenario.name}"
    turns_file = work / "turns.json" if timed and name == "pentalog" else None
    with stopping(_started(name, directory, scenario.delay_ms, turns_file)) as broker:
        _create_topic(broker.address)
        if turns_file is not None:
            broker.process.send_signal(signal.SIGUSR1)
        found = asyncio.run(_run(broker, scenario, steady_s=steady_s))
        if turns_file is not None:
            turn = turns.longest(broker.process.pid, turns_file)
            print(f"{scenario.name}: longest turn {turn['cpu_ms']:.1f} ms of CPU", end="")
            print(f", {turn['wall_ms']:.1f} ms of time")
        return found


_LINES: tuple[tuple[str, Callable[[Measured], float]], ...] = (
    ("until stable, s", lambda found: found.stable_s),
    ("generations", lambda found: found.generations),
    ("broker CPU until stable, s", lambda found: found.forming_cpu_s),
    ("slowest probe, idle, ms", lambda found: found.idle.max_ms),
    ("slowest probe, forming, ms", lambda found: found.forming.max_ms),
    ("p99 probe, forming, ms", lambda found: found.forming.p99_ms),
    ("slowest probe, steady, ms", lambda found: found.steady.max_ms),
    ("p99 probe, steady, ms", lambda found: found.steady.p99_ms),
    ("slowest heartbeat, steady, ms", lambda found: found.heartbeat_max_ms),
    ("slowest commit, steady, ms", lambda found: found.commit_max_ms),
    ("broker CPU, steady, s per s", lambda found: found.steady_cpu_s_per_s),
)


def _show(scenario: Scenario, found: Mapping[str, Measured]) -> Table:
    table = Table(title=scenario.name)
    table.add_column("", no_wrap=True)
    for name in (*found, *(("ratio",) if len(found) == 2 else ())):
        table.add_column(name, justify="right")
    for title, value in _LINES:
        values = [value(one) for one in found.values()]
        cells = [f"{one:,.2f}" for one in values]
        if len(values) == 2:
            cells.append(f"{values[0] / values[1]:.2f}" if values[1] else "")
        table.add_row(title, *cells)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load")
    parser.add_argument("--only", choices=[scenario.name for scenario in SCENARIOS])
    parser.add_argument(
        "--turns", action="store_true", help="time the turns of pentalog's loop, nothing else"
    )
    parser.add_argument("--broker", choices=["pentalog", "kafka"], help="only this one")
    parser.add_argument("--seconds", type=float, default=10.0, help="of heartbeats and commits")
    arguments = parser.parse_args()
    described = machine.described()
    # Both ends of every connection: ours here, the broker's inherits the limit.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    machine.CACHE.mkdir(parents=True, exist_ok=True)
    console = Console()
    names = [arguments.broker] if arguments.broker else ["pentalog", "kafka"]
    if arguments.turns:
        names = ["pentalog"]
    for scenario in SCENARIOS:
        if arguments.only not in (None, scenario.name):
            continue
        asked = scenario.scaled(0.1) if arguments.quick else scenario
        found = {}
        with tempfile.TemporaryDirectory(dir=machine.CACHE) as work:
            for name in names:
                found[name] = _measure(
                    name, asked, Path(work), steady_s=arguments.seconds, timed=arguments.turns
                )
        if arguments.turns:
            continue
        console.print(_show(asked, found))
        console.print(f"{asked.name}: {asked.title}")
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with RESULTS.open("a") as file:
            for one in found.values():
                kept = {"at": at, "quick": arguments.quick, **asdict(one), "machine": described}
                file.write(json.dumps(kept) + "\n")
    console.print(
        "ratios are pentalog : kafka; offsets are acknowledged from the disk by"
        " pentalog, from the page cache by kafka"
    )
    console.print("machine: " + ", ".join(f"{key} {value}" for key, value in described.items()))
    console.print(f"repeat with: python {' '.join(sys.argv)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The cluster engine and a cluster it talks to, on one thread, over connections that can break.

The cluster is our own Kafka door on a disk: it knows producers and their sequences as Kafka does.
"""

from __future__ import annotations

import heapq
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1] / "protocols" / "kafka"))
sys.path.insert(0, str(Path(__file__).parents[1] / "protocols" / "rustlog"))

import disk_broker
from disk_broker import DiskBroker, ManualRuntime
from kafka_world import Line
from rustlog_world import RustLogConnection

from pentalog.broker.port import Broker, TopicSpec
from pentalog.cluster.engine import Engine
from pentalog.cluster.wire import Bytes, Receiver
from pentalog.kernels import Buffer, batch_header
from pentalog.metrics import Metrics
from pentalog.model import batch
from pentalog.model.later import Later
from pentalog.model.types import Ack, Appended, Horizon, Partition, Record
from pentalog.protocols.kafka import records

T = TypeVar("T")

PRODUCE = 0
ROUNDS_MAX = 20_000


class PumpRuntime(ManualRuntime):
    """Carries bytes between the engine and its cluster whenever something is due."""

    def __init__(self) -> None:
        super().__init__()
        self.pump: Callable[[], bool] = lambda: False
        self.held_lanes: set[str] = set()
        """Lanes of the cluster's disk whose threads are stuck until released."""
        self._held: list[tuple[str, Callable[[], None]]] = []

    def offload(
        self,
        lane: str,
        work: Callable[[], Any],
        done: Callable[[Any, BaseException | None], None],
    ) -> None:
        if lane in self.held_lanes:
            self._held.append((lane, lambda: super(PumpRuntime, self).offload(lane, work, done)))
        else:
            super().offload(lane, work, done)

    def run(self) -> None:
        held, self._held = self._held, []
        for lane, release in held:
            if lane in self.held_lanes:
                self._held.append((lane, release))
            else:
                release()
        while True:
            super().run()
            self._fire()
            if not self.pump() and not self._due:
                return

    def _fire(self) -> None:
        """What is due by the time it is: the engine opens connections after a pause of nothing."""
        while self._timers and self._timers[0][0] <= self.time_ms:
            run = heapq.heappop(self._timers)[2].run
            if run is not None:
                run()


class MemoryWire:
    """A connection to the cluster; `world.trouble` says of each request what becomes of it."""

    def __init__(self, world: ClusterWorld, receiver: Receiver) -> None:
        self._world = world
        self._receiver: Receiver | None = receiver
        self._line = HeldLine()
        self._session = world.disk.connect(self._line)
        self._coming = b""
        self._left = b""
        self._delivered = 0
        self._silent = False
        world.runtime.soon(self._open)

    def _open(self) -> None:
        if self._receiver is None:
            return
        if self._world.away:
            self.lose()
        else:
            self._receiver.opened()

    def send(self, pieces: Sequence[Bytes]) -> None:
        self._coming += b"".join(pieces)

    def close(self) -> None:
        self._receiver = None

    def lose(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            self._session.close()
            receiver.lost("the wire was cut")

    def pump(self) -> bool:
        """Carry what has come; False if there was nothing."""
        if self._silent:
            return False
        moved = False
        while self._coming and self._receiver is not None and not self._silent:
            moved = True
            size = 4 + int.from_bytes(self._coming[:4], "big")
            frame, self._coming = self._coming[:size], self._coming[size:]
            self._carry(frame)
        if self._receiver is None:
            return moved
        if self._line.muted:
            self._line.muted = False
            self._feed(b"")
            moved = True
        sent = self._line.sent()
        if len(sent) > self._delivered:
            answer, self._delivered = sent[self._delivered :], len(sent)
            while answer and self._receiver is not None:
                buffer = self._receiver.buffer()
                size = min(len(buffer), len(answer))
                buffer[:size] = answer[:size]
                answer = answer[size:]
                self._receiver.received(size)
            moved = True
        return moved

    def _carry(self, frame: bytes) -> None:
        what = self._world.trouble(frame)
        if what == "before":
            self.lose()
        elif what == "silence":
            self._silent = True
        elif what == "after":
            self._feed(frame)
            self.lose()
        elif isinstance(what, bytes):
            self._line.send(what)
        else:
            self._feed(frame)

    def _feed(self, data: bytes) -> None:
        buffer = bytearray(self._left + data)
        # Apache Kafka keeps attribute bits that it does not know.
        with self._world.disk.seeded(), patch.object(records, "OWN", 0):
            used = self._session.receive(memoryview(buffer))
        self._left = bytes(buffer[used:])


class HeldLine(Line):
    def hold(self) -> Callable[[], None]:
        self.full = True

        def release() -> None:
            self.full = False
            self.muted = True  # what waits is served again

        return release


class ClusterWorld:
    """An engine in front of a cluster; stands for a `DiskBroker` in the RustLog worlds."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        with patch.object(disk_broker, "ManualRuntime", PumpRuntime):
            self.disk = DiskBroker(directory, **settings)
        assert isinstance(self.disk.runtime, PumpRuntime)
        self.runtime = self.disk.runtime
        self.runtime.pump = self._pump
        self.config = self.disk.config
        self.metrics = self.disk.metrics
        self.seeded = self.disk.seeded
        self.trouble: Callable[[bytes], str | bytes | None] = lambda frame: None
        self.away = False
        self.wires: list[MemoryWire] = []
        self.passed = Metrics()
        """What the gateway counts; `metrics` is what the cluster does."""
        self.engine = Engine(self, self.runtime, self.passed, [("host.example", 9092)])
        self.broker: Broker = self.until(self.engine.open())

    def dial(self, host: str, port: int, receiver: Receiver) -> MemoryWire:
        self.wires.append(MemoryWire(self, receiver))
        return self.wires[-1]

    def _pump(self) -> bool:
        moved = [wire.pump() for wire in self.wires]
        return any(moved)

    def until(self, later: Later[T]) -> T:
        """Let time pass until it is there."""
        for _ in range(ROUNDS_MAX):
            self.runtime.run()
            if later.ready:
                return later.value
            self.runtime.advance(10)
        raise AssertionError("it never came")

    def create(self, name: str, partitions: int = 1) -> None:
        spec = TopicSpec(name=name, partitions=partitions)
        self.until(self.broker.topics.prepare(spec))
        assert self.broker.topics.create(spec).partitions == partitions

    def append(self, at: Partition, *values: bytes, ack: Ack = Ack.DURABLE) -> Later[Appended]:
        records = [Record(value) for value in values]
        data = batch.build(records, timestamp_ms=self.runtime.now_ms())
        log = self.broker.log
        return log.settle(log.append(at, memoryview(data)), ack)

    def kept(self, at: Partition) -> list[bytes]:
        """What the cluster has, in order."""
        log = self.disk.broker.log
        found: list[bytes] = []
        offset = 0
        while offset < log.marks(at).end:
            opened = log.open(at, offset, bytes_max=1 << 20, horizon=Horizon.END).value
            for each, value in values_of(opened.batches):
                assert each == len(found)
                found.append(value)
            offset = opened.next_offset
        return found

    def close(self) -> None:
        self.engine.close()
        self.disk.close()


class SecondGateway:
    """Another engine in front of the same cluster."""

    def __init__(self, world: ClusterWorld) -> None:
        self.runtime, self.config, self.metrics = world.runtime, world.config, world.metrics
        self.seeded = world.seeded
        self.engine = Engine(world, world.runtime, Metrics(), [("host.example", 9092)])
        self.broker: Broker = world.until(self.engine.open())


def values_of(batches: Buffer) -> list[tuple[int, bytes]]:
    """Offsets and values of the records in whole batches."""
    found: list[tuple[int, bytes]] = []
    position = 0
    while position < len(batches):
        for offset, record in batch.records_of(batches, position, bytes_max=1 << 20):
            assert record.value is not None
            found.append((offset, record.value))
        position += batch_header(batches, position).size
    return found


def refused_produce(frame: bytes, code: int, throttle_ms: int = 0) -> bytes | None:
    """A node's refusal of every partition of a Produce, which it has not looked at."""
    key, _, correlation_id, size = struct.unpack_from(">hhih", frame, 4)
    if key != PRODUCE:
        return None
    position = 14 + size + 8
    (topics,) = struct.unpack_from(">i", frame, position)
    position += 4
    out = struct.pack(">ii", correlation_id, topics)
    for _ in range(topics):
        (size,) = struct.unpack_from(">h", frame, position)
        out += frame[position : position + 2 + size]
        position += 2 + size
        (parts,) = struct.unpack_from(">i", frame, position)
        out += struct.pack(">i", parts)
        position += 4
        for _ in range(parts):
            index, length = struct.unpack_from(">ii", frame, position)
            position += 8 + length
            out += struct.pack(">ihqqq", index, code, -1, -1, -1)
    out += struct.pack(">i", throttle_ms)
    return struct.pack(">i", len(out)) + out


def is_produce(frame: bytes) -> bool:
    return bool(struct.unpack_from(">h", frame, 4)[0] == PRODUCE)


class GatewayConnection(RustLogConnection):
    """A RustLog connection to the engine."""

    def __init__(self, world: ClusterWorld | SecondGateway) -> None:
        with patch("rustlog_world.Line", HeldLine):
            super().__init__(world)  # type: ignore[arg-type]


class GatewayWorld(ClusterWorld):
    """Stands for a `RustLogWorld` in tests of that door."""

    def connect(self) -> GatewayConnection:
        return GatewayConnection(self)

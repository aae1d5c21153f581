"""A broker in memory whose every wait a test can hold back, and a connection to drive by hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from kio.index import load_response_schema
from kio.serial import entity_reader

from pentalog import kernels
from pentalog.broker.groups import LocalGroups
from pentalog.broker.operation import Fixed
from pentalog.broker.port import Admitted, Broker, Topic, TopicSpec, Waiting
from pentalog.broker.state import State
from pentalog.config import Config
from pentalog.kernels import Facts
from pentalog.metrics import Metrics
from pentalog.model import batch
from pentalog.model.errors import BatchCorrupt, BrokerError, OffsetOutOfRange, TopicNotFound
from pentalog.model.later import Later
from pentalog.model.settings import LogSettings
from pentalog.model.types import (
    Ack,
    Appended,
    Edge,
    FilePiece,
    Horizon,
    Identity,
    Marks,
    Partition,
    Piece,
    Record,
    Slice,
)
from pentalog.protocols.kafka.session import KafkaSession
from pentalog.session import Address, Context

LENGTH = 4


class MemoryWaiting(Waiting):
    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        super().__init__()
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class MemoryLog:
    """Keeps batches in lists.  `held` holds back settles, `slow` reads, `refusal` refuses all."""

    def __init__(self) -> None:
        self.batches: dict[Partition, list[bytes]] = {}
        self.end: dict[Partition, int] = {}
        self.appends: list[tuple[Partition, int]] = []
        self.held: list[tuple[Later[Appended], Appended]] | None = None
        self.slow: list[tuple[Later[Slice], Slice]] | None = None
        self.waits: list[tuple[MemoryWaiting, dict[Partition, int]]] = []
        self.refuse: Callable[[Facts], BrokerError | None] = lambda facts: None

    def append(
        self,
        at: Partition,
        batches: memoryview,
        facts: Facts | None = None,
        *,
        parted: bool = False,
        opened: LogSettings | None = None,
    ) -> Appended:
        assert not batches.readonly
        facts = facts or kernels.check_batches(batches, 0, len(batches))
        if facts.flaw:
            raise BatchCorrupt("flawed")
        refusal = self.refuse(facts)
        if refusal is not None:
            raise refusal
        base = self.end.get(at, 0)
        kernels.stamp(batches, 0, len(batches), base, 0)
        self.batches.setdefault(at, []).append(bytes(batches))
        self.end[at] = base + facts.offsets
        self.appends.append((at, facts.batches))
        return Appended(at, base, self.end[at], -1, 0)

    def admission(
        self, at: Partition, batches: memoryview, facts: Facts, *, owned: bool = False
    ) -> Later[Admitted] | None:
        return None

    def settle(self, appended: Appended, ack: Ack) -> Later[Appended]:
        if ack is not Ack.DURABLE or self.held is None:
            return Later.now(appended)
        later: Later[Appended] = Later()
        self.held.append((later, appended))
        return later

    def read(
        self,
        at: Partition,
        offset: int,
        *,
        bytes_max: int,
        horizon: Horizon,
        whole_first: bool = True,
    ) -> Later[Slice]:
        marks = self.marks(at)
        if not 0 <= offset <= marks.end:
            raise OffsetOutOfRange("outside", start=0, end=marks.end)
        found: list[memoryview] = []
        size, next_offset = 0, offset
        for data in self.batches.get(at, ()):
            header = kernels.batch_header(data, 0)
            after = header.base_offset + header.last_offset_delta + 1
            if after <= offset:
                continue
            if size + len(data) > bytes_max and not (whole_first and not found):
                break
            found.append(memoryview(data))
            size += len(data)
            next_offset = after
        slice_ = Slice(found, size, marks, next_offset)
        if self.slow is None:
            return Later.now(slice_)
        later: Later[Slice] = Later()
        self.slow.append((later, slice_))
        return later

    def wait(
        self,
        positions: Mapping[Partition, int],
        *,
        bytes_min: int,
        horizon: Horizon,
        timeout_ms: int,
    ) -> MemoryWaiting:
        waiting = MemoryWaiting()
        if timeout_ms > 0:
            self.waits.append((waiting, dict(positions)))
        else:
            waiting.fill(False)  # everything is durable here
        return waiting

    def ends(self, partitions: Collection[Partition]) -> Later[Mapping[Partition, int]]:
        return Later.now({at: self.marks(at).durable for at in partitions})

    def marks(self, at: Partition) -> Marks:
        end = self.end.get(at, 0)
        return Marks(0, end, end, end)

    def locate(self, at: Partition, when: Edge | int) -> Later[tuple[int, int]]:
        best = (-1, -1)
        for data in self.batches.get(at, ()):
            for offset, record in batch.records_of(data, 0, bytes_max=1 << 20):
                if when is Edge.NEWEST_TIMESTAMP:
                    if record.timestamp_ms > best[1]:
                        best = (offset, record.timestamp_ms)
                elif isinstance(when, int) and record.timestamp_ms >= when:
                    return Later.now((offset, record.timestamp_ms))
        return Later.now(best)

    def size_bytes(self, at: Partition) -> int:
        return sum(map(len, self.batches.get(at, ())))


class MemoryTopics:
    def __init__(self) -> None:
        self.version = 1
        self.known: dict[str, Topic] = {}
        self.unsettled: list[Later[None]] | None = None

    def add(self, name: str, partitions: int = 1) -> Topic:
        topic_id = UUID(int=len(self.known) + 1)
        topic = Topic(
            name=name,
            topic_id=topic_id,
            partitions=partitions,
            overrides={},
            settings=LogSettings(),
        )
        self.known[name] = topic
        self.version += 1
        return topic

    def create(self, spec: TopicSpec, *, dry_run: bool = False) -> Topic:
        return self.add(spec.name, spec.partitions or 1)

    def prepare(self, spec: TopicSpec) -> Later[None]:
        return Later.now(None)

    def delete(self, name: str) -> None:
        del self.known[name]
        self.version += 1

    def get(self, name: str) -> Topic:
        if name not in self.known:
            raise TopicNotFound(f"no topic {name}")
        return self.known[name]

    def by_id(self, topic_id: UUID) -> Topic:
        for topic in self.known.values():
            if topic.topic_id == topic_id:
                return topic
        raise TopicNotFound(f"no topic {topic_id}")

    def all(self, *, internal: bool = False) -> list[Topic]:
        return list(self.known.values())

    def settle(self) -> Later[None]:
        if self.unsettled is None:
            return Later.now(None)
        later: Later[None] = Later()
        self.unsettled.append(later)
        return later


class MemoryProducers:
    def __init__(self) -> None:
        self.next = 1000
        self.held: list[Later[Identity]] | None = None

    def identify(self) -> Later[Identity]:
        if self.held is not None:
            self.held.append(Later())
            return self.held[-1]
        self.next += 1
        return Later.now(Identity(self.next, 0))


class Clock:
    time_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic(self) -> float:
        return self.time_ms / 1000


class KeptPlace:
    def __init__(self) -> None:
        self.pieces: tuple[Piece, ...] | None = None

    def fill(self, *pieces: Piece) -> None:
        assert self.pieces is None, "filled twice"
        self.pieces = pieces


class Line:
    """Collects what a session sends, in order, as a socket would see it."""

    def __init__(self) -> None:
        self.sends = 0
        self.hung_up = False
        self.muted = False
        self.held = False
        self._full = False
        self._places: list[KeptPlace] = []

    def send(self, *pieces: Piece) -> None:
        self.sends += 1
        self.place().fill(*pieces)

    def place(self) -> KeptPlace:
        assert not self.hung_up
        self._places.append(KeptPlace())
        return self._places[-1]

    def reserve(self, size: int) -> Later[Callable[[], None]]:
        return Later.now(lambda: None)

    def hang_up(self) -> None:
        self.hung_up = True

    def mute(self, delay_ms: int) -> None:
        assert delay_ms > 0
        self.muted = True

    def hold(self) -> Callable[[], None]:
        assert not self.held
        self.held = True
        return self._let_go

    def _let_go(self) -> None:
        self.held = False

    @property
    def full(self) -> bool:
        return self._full or self.held

    @full.setter
    def full(self, full: bool) -> None:
        self._full = full

    @property
    def waiting(self) -> int:
        return sum(place.pieces is None for place in self._places)

    def sent(self) -> bytes:
        """Everything up to the first place that is still open."""
        out = bytearray()
        for place in self._places:
            if place.pieces is None:
                break
            for piece in place.pieces:
                if isinstance(piece, FilePiece):
                    out += os.pread(piece.file.fd, piece.length, piece.position)
                else:
                    out += piece
        return bytes(out)

    def frames(self) -> list[bytes]:
        data, found = self.sent(), []
        while data:
            size = int.from_bytes(data[:LENGTH], "big")
            assert len(data) >= LENGTH + size, "a frame is cut off"
            found.append(data[LENGTH : LENGTH + size])
            data = data[LENGTH + size :]
        return found


class World:
    """A session with everything around it in reach."""

    def __init__(self, **config: Any) -> None:
        self.log = MemoryLog()
        self.topics = MemoryTopics()
        self.producers = MemoryProducers()
        self.clock = Clock()
        self.metrics = Metrics()
        self.config = Config(**config)
        nobody: Any = None
        # Never opened: there are no groups, and nobody can join without timers.
        state = State(Path(":memory:"), self.clock)  # type: ignore[arg-type]
        self.groups = LocalGroups(state, self.clock, self.config)  # type: ignore[arg-type]
        self.broker = Broker(
            "cluster-0000000000000x",
            self.log,
            self.topics,  # type: ignore[arg-type]
            self.producers,
            self.groups,
            nobody,
            settings=Fixed(self.config),
        )
        self.line = Line()
        self.session = self.connect(self.line)

    def connect(self, line: Line) -> KafkaSession:
        context = Context(
            broker=self.broker,
            runtime=self.clock,  # type: ignore[arg-type]
            config=self.config,
            metrics=self.metrics,
            peer="test",
            listener="kafka",
            advertised=lambda endpoint: Address("host.example", 9092),
        )
        return KafkaSession(context, line)

    def feed(self, data: bytes) -> int:
        """Give bytes to the session from a buffer of their own, spoiled afterwards."""
        buffer = bytearray(data)
        used = self.session.receive(memoryview(buffer))
        buffer[:] = b"\xaa" * len(buffer)
        return used

    def ask(self, key: int, version: int, request: bytes) -> Any:
        """Feed one request and read its one answer, by kio."""
        before = len(self.line.frames())
        assert self.feed(request) == len(request)
        answers = self.line.frames()[before:]
        assert len(answers) == 1, f"{len(answers)} answers"
        return answer_of(key, version, answers[0])


def answer_of(key: int, version: int, payload: bytes) -> Any:
    schema = load_response_schema(key, version)
    start = 5 if schema.__header_schema__.__flexible__ else 4
    entity, size = entity_reader(schema)(payload, start)
    assert start + size == len(payload)
    return entity


def records(count: int = 1, *, size: int = 10, codec: int = 0, **fields: Any) -> bytearray:
    """One batch."""
    made = [Record(value=b"v" * size, key=b"k", timestamp_ms=1000 + n) for n in range(count)]
    return batch.build(made, codec=codec, timestamp_ms=1000, **fields)

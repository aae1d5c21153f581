"""A whole broker in a directory, on one thread, and BlipMQ connections to it, driven by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.runtimes import SteppedRuntime

from pentalog.broker.groups import LocalGroups
from pentalog.broker.log import LocalLog
from pentalog.broker.port import Broker, TopicSpec
from pentalog.broker.producers import LocalProducers
from pentalog.broker.security import UNTIRING, Access, Attempts
from pentalog.broker.state import FILE_NAME, State
from pentalog.broker.subscriptions import LocalSubscriptions
from pentalog.broker.topics import LocalTopics
from pentalog.broker.transactions import LocalTransactions
from pentalog.config import Config
from pentalog.log.files import Files, RealFiles
from pentalog.log.store import Store
from pentalog.metrics import Metrics
from pentalog.model import batch
from pentalog.model.later import Later
from pentalog.model.types import Ack, FilePiece, Horizon, Partition, Piece, Record
from pentalog.protocols.blipmq.session import BlipmqSession
from pentalog.session import Address, Context

HELLO = bytes.fromhex("0000000b0100000000000000010001")
AUTH = bytes.fromhex("0000001202000000000000000200076465762d6b6579")


class BlipBroker:
    """One life of a broker."""

    def __init__(
        self,
        directory: Path,
        *,
        runtime: SteppedRuntime | None = None,
        files: Files | None = None,
        **settings: Any,
    ) -> None:
        self.runtime = runtime or SteppedRuntime()
        self.attempts: Attempts = UNTIRING
        settings.setdefault("journal_bytes", 1 << 20)
        self.config = Config(data=directory, **settings)
        self.metrics = Metrics()
        self.store = Store(directory, files or RealFiles(), self.runtime, self.metrics, self.config)
        self.store.open()
        self.state = State(directory / FILE_NAME, self.runtime)
        self.state.open()
        self.log = LocalLog(self.store, self.runtime, self.metrics)
        self.topics = LocalTopics(self.store, self.state, self.runtime, self.config)
        self.topics.open()
        producers = LocalProducers(self.state)
        producers.open()
        self.groups = LocalGroups(self.state, self.runtime, self.config)
        self.groups.open()
        self.transactions = LocalTransactions(
            self.store,
            self.log,
            self.state,
            producers,
            self.groups.offsets,
            self.runtime,
            self.config,
        )
        self.transactions.open()
        self.subscriptions = LocalSubscriptions(
            self.state, self.log, self.topics, self.runtime, self.metrics, self.config
        )
        self.subscriptions.restore()
        self.topics.on_deleted.append(self.subscriptions.topic_deleted)
        self.broker = Broker(
            "AAAAAAAAAAAAAAAAAAAAAA",
            self.log,
            self.topics,
            producers,
            self.groups,
            self.transactions,
            subscriptions=self.subscriptions,
        )
        self.runtime.step()

    def connect(self, *, peer: str = "127.0.0.1:50000", full_bytes: int = 1 << 30) -> Connection:
        return Connection(self, peer, full_bytes)

    def client(self) -> Connection:
        """A connection that has shaken hands."""
        connection = self.connect()
        connection.ask(HELLO + AUTH)
        return connection

    def topic(self, name: str, partitions: int = 1, **settings: str) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.topics.create(TopicSpec(name=name, partitions=partitions, settings=named))
        self.runtime.step()

    def append(self, at: Partition, *values: bytes | None, **options: Any) -> int:
        """Write through no door; the next offset."""
        data = batch.build(
            [Record(value) for value in values], timestamp_ms=self.runtime.now_ms(), **options
        )
        appended = self.log.append(at, memoryview(data))
        self.log.settle(appended, Ack.DURABLE)
        self.runtime.step()
        return appended.next_offset

    def records(self, at: Partition) -> list[tuple[int, Record]]:
        """Everything stable in a partition."""
        found: list[tuple[int, Record]] = []
        offset = self.log.marks(at).start
        while True:
            later = self.log.open(at, offset, bytes_max=1 << 20, horizon=Horizon.STABLE)
            self.runtime.step()
            opened = later.value
            if opened.next_offset == offset:
                return found
            position = 0
            while position < len(opened.batches):
                records = batch.records_of(opened.batches, position, bytes_max=1 << 26)
                found += [record for record in records if record[0] >= offset]
                size = int.from_bytes(opened.batches[position + 8 : position + 12], "big")
                position += 12 + size
            offset = opened.next_offset

    def stop(self) -> None:
        """A clean stop."""
        self.groups.stop_waiting()
        self.subscriptions.stop()
        self.groups.close()
        self.transactions.close()
        self.state.close()
        self.runtime.step()
        self.store.close()

    def crash(self) -> None:
        """Let go of everything as a killed process does."""
        database = self.state._database
        if database is not None:
            database.close()
        for partition in self.store.all():
            partition.close()
        self.store.journal.close()
        self.store._lock = None


class _Place:
    def __init__(self, line: Connection) -> None:
        self._line = line
        self.pieces: tuple[Piece, ...] | None = None

    def fill(self, *pieces: Piece) -> None:
        assert self.pieces is None, "filled twice"
        self.pieces = pieces


class Connection:
    """A session, the receive buffer a server would keep for it, and what it answers, in order."""

    def __init__(self, broker: BlipBroker, peer: str, full_bytes: int) -> None:
        self.broker = broker
        self.ended = False
        self.held = False
        self._muted = False
        self.full_bytes = full_bytes
        self._line: list[_Place | bytes] = []
        self._taken = bytearray()
        self._left = b""
        context = Context(
            broker=broker.broker,
            runtime=broker.runtime,
            config=broker.config,
            metrics=broker.metrics,
            peer=peer,
            listener="blipmq",
            advertised=lambda endpoint: Address("host.example", 5555),
            access=Access(broker.broker.rules, host="127.0.0.1", attempts=broker.attempts),
        )
        self.session = BlipmqSession(context, self)

    @property
    def full(self) -> bool:
        size = sum(len(entry) for entry in self._line if isinstance(entry, bytes))
        return self.held or size > self.full_bytes or len(self._line) >= 1000

    def send(self, *pieces: Piece) -> None:
        for piece in pieces:
            assert not isinstance(piece, FilePiece)
            self._line.append(bytes(piece))

    def place(self) -> _Place:
        place = _Place(self)
        self._line.append(place)
        return place

    def reserve(self, size: int) -> Later[Callable[[], None]]:
        return Later.now(lambda: None)

    def hang_up(self) -> None:
        self.ended = True

    def mute(self, delay_ms: int) -> None:
        self._muted = True

    def unmute(self) -> None:
        """Have a session that asked for a pause look again at what it left, as a server does."""
        if self._muted:
            self._muted = False
            self.feed(b"")

    def hold(self) -> Callable[[], None]:
        assert not self.held, "held already"
        self.held = True
        return self._let_go

    def _let_go(self) -> None:
        self.held = False

    def when_room(self, run: Any) -> None:
        self.broker.runtime.soon(run)

    def feed(self, data: bytes) -> None:
        buffer = bytearray(self._left + data)
        used = self.session.receive(memoryview(buffer))
        assert 0 <= used <= len(buffer)
        self._left = bytes(buffer[used:])
        # What was sent must not depend on what the buffer holds next.
        buffer[:] = b"\xaa" * len(buffer)

    def take(self) -> bytes:
        """The answers that have left, and room for more."""
        out = bytearray()
        while self._line:
            head = self._line[0]
            if isinstance(head, _Place):
                if head.pieces is None:
                    break
                for piece in head.pieces:
                    assert not isinstance(piece, FilePiece)
                    out += piece
            else:
                out += head
            self._line.pop(0)
        return bytes(out)

    def ask(self, data: bytes) -> bytes:
        """The answers to these bytes, given whatever waits they need."""
        self.feed(data)
        self.broker.runtime.step()
        out = bytearray(self.take())
        while self._left and not self.ended:
            before = len(self._left)
            self.feed(b"")
            self.broker.runtime.step()
            out += self.take()
            if len(self._left) == before:
                break
        return bytes(out)

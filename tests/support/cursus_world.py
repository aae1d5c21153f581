"""A whole broker with its Cursus door, on one thread, whose time moves only when told to."""

from __future__ import annotations

import json
import random
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.support.runtimes import SteppedRuntime

from pentalog.broker.aggregates import LocalAggregates
from pentalog.broker.groups import LocalGroups
from pentalog.broker.log import LocalLog
from pentalog.broker.named_producers import LocalNamedProducers
from pentalog.broker.port import Broker
from pentalog.broker.producers import LocalProducers
from pentalog.broker.security import Access
from pentalog.broker.shared_rosters import LocalSharedRosters
from pentalog.broker.sourcing import Sourcing
from pentalog.broker.state import FILE_NAME, State
from pentalog.broker.topic_options import LocalTopicOptions
from pentalog.broker.topics import LocalTopics
from pentalog.broker.transactions import LocalTransactions
from pentalog.config import Config
from pentalog.log.files import RealFiles
from pentalog.log.store import Store
from pentalog.metrics import Metrics
from pentalog.model.later import Later
from pentalog.model.types import FilePiece, Piece
from pentalog.protocols.cursus.gaps import PATIENCE_MS
from pentalog.protocols.cursus.session import CursusSession
from pentalog.session import Address, Context

MAGIC = b"\xba\x7c"


class CursusBroker:
    """Opened in a directory; with `crash` it goes as a killed process does."""

    def __init__(self, directory: Path, *, seed: int = 0, **settings: Any) -> None:
        self.runtime = SteppedRuntime()
        self.config = Config(data=Path("data"), **settings)
        self.metrics = Metrics()
        dice = random.Random(seed)
        self._random = dice.getstate()
        self.store = Store(directory, RealFiles(), self.runtime, self.metrics, self.config)
        self.state = State(directory / FILE_NAME, self.runtime)
        with self.seeded():
            self._open()

    def _open(self) -> None:
        self.store.open()
        self.state.open()
        self.topics = LocalTopics(self.store, self.state, self.runtime, self.config)
        self.topics.open()
        producers = LocalProducers(self.state)
        producers.open()
        self.log = LocalLog(self.store, self.runtime, self.metrics)
        self.groups = LocalGroups(self.state, self.runtime, self.config)
        self.groups.open()
        self.topics.on_deleted.append(self.groups.topic_deleted)
        self.transactions = LocalTransactions(
            self.store, self.log, self.state, producers, self.groups.offsets, self.runtime,
            self.config,
        )  # fmt: skip
        self.transactions.open()
        named = LocalNamedProducers(self.store, self.state, self.config)
        self.rosters = LocalSharedRosters(self.state, self.runtime, self.topics, self.config)
        self.aggregates = LocalAggregates(self.log, self.state, self.runtime, self.config)
        options = LocalTopicOptions(self.state)
        for part in (named, self.rosters, self.aggregates, options):
            part.open()
        self.topics.on_deleted += (
            self.rosters.topic_deleted, self.aggregates.topic_deleted, options.topic_deleted,
        )  # fmt: skip
        self.groups.reads_elsewhere = self.rosters.reads
        self.broker = Broker(
            "AAAAAAAAAAAAAAAAAAAAAA", self.log, self.topics, producers, self.groups,
            self.transactions, sourcing=Sourcing(named, self.rosters, self.aggregates, options),
        )  # fmt: skip
        self.beside = self.broker
        """What those use who come through other doors."""
        self.runtime.step()

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Whatever is drawn at random repeats from seed to seed."""
        before = random.getstate()
        random.setstate(self._random)
        made = lambda: uuid.UUID(int=random.getrandbits(128), version=4)  # noqa: E731
        try:
            with patch.object(uuid, "uuid4", made):
                yield
        finally:
            self._random = random.getstate()
            random.setstate(before)

    def connect(self, access: Access | None = None, *demands: str) -> Client:
        """Connect, as somebody if `access` says so, to a listener that demands something."""
        return Client(self, access=access, demands=frozenset(demands))

    def step(self) -> None:
        with self.seeded():
            self.runtime.step()

    def advance(self, delay_ms: int) -> None:
        with self.seeded():
            self.runtime.advance(delay_ms)

    def close(self) -> None:
        self.groups.stop_waiting()
        self.groups.close()
        self.rosters.close()
        self.transactions.close()
        self.state.close()
        self.runtime.step()
        self.store.close()
        self.runtime.step()


class Line:
    """The way out of a connection, kept in memory."""

    def __init__(self, runtime: SteppedRuntime) -> None:
        self._runtime = runtime
        self._entries: list[_Place] = []
        self.full = False
        self.hung_up = False
        self._patient: list[Any] = []

    @property
    def queued_bytes(self) -> int:
        return sum(len(entry.data or b"") for entry in self._entries)

    def send(self, *pieces: Piece) -> None:
        self.place().fill(*pieces)

    def place(self) -> _Place:
        place = _Place()
        if not self.hung_up:
            self._entries.append(place)
        return place

    def reserve(self, size: int) -> Later[Callable[[], None]]:
        later: Later[Callable[[], None]] = Later()
        if self.full:
            self._patient.append(lambda: later.fill(lambda: None))
        else:
            later.fill(lambda: None)
        return later

    def hang_up(self) -> None:
        self.hung_up = True

    def mute(self, delay_ms: int) -> None: ...

    def hold(self) -> Callable[[], None]:
        assert not self.full, "held already"
        self.full = True
        return self.drain

    def when_room(self, run: Any) -> None:
        if self.full:
            self._patient.append(run)
        else:
            self._runtime.soon(run)

    def drain(self) -> None:
        self.full = False
        patient, self._patient = self._patient, []
        for run in patient:
            self._runtime.soon(run)

    def take(self) -> bytes:
        """What has left since the last time: up to the first place that is not filled."""
        out = b""
        while self._entries and self._entries[0].data is not None:
            out += self._entries.pop(0).data or b""
        return out


class _Place:
    def __init__(self) -> None:
        self.data: bytes | None = None

    def fill(self, *pieces: Piece) -> None:
        assert self.data is None, "a place is filled once"
        assert not any(isinstance(piece, FilePiece) for piece in pieces)
        self.data = b"".join(bytes(piece) for piece in pieces)  # type: ignore[arg-type]


class Client:
    """A connection, with the receive buffer a server would keep for it."""

    def __init__(
        self, broker: CursusBroker, line: Line | None = None, *, access: Access | None = None,
        demands: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.broker = broker
        self.line = line or Line(broker.runtime)
        context = Context(
            broker=broker.broker,
            runtime=broker.runtime,
            config=broker.config,
            metrics=broker.metrics,
            peer="test",
            listener="cursus",
            advertised=lambda endpoint: Address("localhost", 9000),
            access=access or Access(),
            demands=demands,
        )
        self.session = CursusSession(context, self.line)
        self._left = b""
        self._sent = b""

    def feed(self, data: bytes) -> None:
        buffer = bytearray(self._left + data)
        with self.broker.seeded():
            used = self.session.receive(memoryview(buffer))
        assert 0 <= used <= len(buffer)
        self._left = bytes(buffer[used:])
        # What was sent must not depend on what the buffer holds next.
        buffer[:] = b"\xaa" * len(buffer)

    def frames(self) -> list[bytes]:
        """Whole frames that have come since the last time."""
        self._sent += self.line.take()
        found = []
        while len(self._sent) >= 4:
            (size,) = struct.unpack_from(">I", self._sent)
            if len(self._sent) < 4 + size:
                break
            found.append(self._sent[4 : 4 + size])
            self._sent = self._sent[4 + size :]
        return found

    def ask(self, body: bytes | str) -> list[bytes]:
        """All frames that come back for one request."""
        body = body.encode("utf-8", "surrogateescape") if isinstance(body, str) else body
        self.feed(frame(body))
        self.broker.step()
        while self._left and not self.line.full:
            # As a connection does that may go on: a large frame is offered again for each part.
            self.feed(b"")
            self.broker.step()
        return self.frames()

    def text(self, command: str) -> str:
        """The one line that comes back, in an envelope as most clients send it."""
        (answer,) = self.ask(b"\0\0" + command.encode("utf-8", "surrogateescape"))
        return answer.decode("utf-8", "surrogateescape")

    def publish(self, body: bytes) -> dict[str, Any]:
        """The answer to a batch; one that seems to come too early is not answered at once."""
        answers = self.ask(body)
        if not answers:
            self.broker.advance(PATIENCE_MS)
            answers = self.frames()
        (answer,) = answers
        found: dict[str, Any] = json.loads(answer)
        return found

    def read(self, command: str) -> list[Message]:
        (answer,) = self.ask(command)
        return messages_of(answer)


class Message:
    """A message as the wire has it."""

    def __init__(
        self, payload: bytes = b"x", *, seq: int = 0, producer: bytes = b"", key: bytes = b"",
        epoch: int = 0, event: bytes = b"", schema: int = 0, version: int = 0,
        metadata: bytes = b"", offset: int = 0,
    ) -> None:  # fmt: skip
        self.payload, self.seq, self.producer, self.key = payload, seq, producer, key
        self.epoch, self.event, self.schema, self.version = epoch, event, schema, version
        self.metadata, self.offset = metadata, offset

    def encoded(self) -> bytes:
        return b"".join(
            (
                struct.pack(">QQ", self.offset, self.seq), _text(self.producer), _text(self.key),
                struct.pack(">qI", self.epoch, len(self.payload)), self.payload,
                _text(self.event), struct.pack(">IQ", self.schema, self.version),
                _text(self.metadata),
            )
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.encoded())

    def __repr__(self) -> str:
        return f"Message({vars(self)})"


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def batch(
    messages: Sequence[Message], *, topic: str = "orders", partition: int = 0, acks: str = "1",
    idempotent: bool = False, document: bool = False,
) -> bytes:  # fmt: skip
    """The body of a batch frame."""
    name = topic.encode()
    head = MAGIC + _text(name)
    if document:
        head += _text(str(partition).encode()) + _text(acks.encode())
    else:
        head += struct.pack(">iB", partition, len(acks)) + acks.encode()
    first, last = (messages[0].seq, messages[-1].seq) if messages else (0, 0)
    head += struct.pack(">BQQi", idempotent, first, last, len(messages))
    return head + b"".join(message.encoded() for message in messages)


def numbered(
    *seqs: int, producer: bytes = b"p1", epoch: int = 1, payload: bytes = b"x", **more: Any
) -> bytes:
    """An idempotent batch of these sequence numbers."""
    messages = [Message(payload, seq=seq, producer=producer, epoch=epoch) for seq in seqs]
    return batch(messages, idempotent=True, **more)


def messages_of(body: bytes) -> list[Message]:
    """The messages of a batch in either dialect."""
    assert body[:2] == MAGIC, body
    (size,) = struct.unpack_from(">H", body, 2)
    at = 4 + size
    (digits,) = struct.unpack_from(">H", body, at)
    if digits:
        at += 2 + digits
        (acks,) = struct.unpack_from(">H", body, at)
        at += 2 + acks
    else:
        at += 5 + body[at + 4]
    _, _, _, count = struct.unpack_from(">BQQi", body, at)
    at += 21
    found = []
    for _ in range(count):
        message, at = _message_at(body, at)
        found.append(message)
    assert at == len(body)
    return found


def _message_at(body: bytes, at: int) -> tuple[Message, int]:
    offset, seq = struct.unpack_from(">QQ", body, at)
    producer, at = _text_at(body, at + 16)
    key, at = _text_at(body, at)
    epoch, size = struct.unpack_from(">qI", body, at)
    payload, at = body[at + 12 : at + 12 + size], at + 12 + size
    event, at = _text_at(body, at)
    schema, version = struct.unpack_from(">IQ", body, at)
    metadata, at = _text_at(body, at + 12)
    message = Message(
        payload, seq=seq, producer=producer, key=key, epoch=epoch, event=event, schema=schema,
        version=version, metadata=metadata, offset=offset,
    )  # fmt: skip
    return message, at


def _text_at(body: bytes, at: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from(">H", body, at)
    return body[at + 2 : at + 2 + size], at + 2 + size


def _text(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data

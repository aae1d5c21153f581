"""A broker on one thread with moving time, connections to it, and their answers read by kio."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from tests.support.runtimes import SteppedRuntime

from pentalog.broker.consumers import LocalConsumers
from pentalog.broker.groups import LocalGroups
from pentalog.broker.live_settings import LocalSettings
from pentalog.broker.log import LocalLog
from pentalog.broker.port import Broker
from pentalog.broker.producers import LocalProducers
from pentalog.broker.quotas import LocalQuotas
from pentalog.broker.state import FILE_NAME, State
from pentalog.broker.topics import LocalTopics
from pentalog.config import Config
from pentalog.log.files import RealFiles
from pentalog.log.store import Store
from pentalog.metrics import Metrics
from pentalog.model.types import FilePiece, Piece
from pentalog.protocols.kafka.session import KafkaSession
from pentalog.session import Address, Context


class Bench:
    def __init__(self, directory: Path, **settings: Any) -> None:
        self.runtime = SteppedRuntime()
        self.config = Config(data=directory, **settings)
        self.metrics = Metrics()
        self.store = Store(directory, RealFiles(), self.runtime, self.metrics, self.config)
        self.store.open()
        self.state = State(directory / FILE_NAME, self.runtime)
        self.state.open()
        self.settings = LocalSettings(self.state, self.config)
        self.settings.open()
        self.topics = LocalTopics(self.store, self.state, self.runtime, self.settings.live)
        self.topics.open()
        self.settings.watch(self.topics.reconfigure, self.topics.check_defaults)
        self.quotas = LocalQuotas(self.state, self.runtime)
        self.quotas.open()
        self.groups = LocalGroups(self.state, self.runtime, self.config)
        self.groups.open()
        self.consumers = LocalConsumers(self.groups, self.topics)
        self.consumers.open()
        parts: dict[str, Any] = {
            field.name: None
            for field in dataclasses.fields(Broker)
            if field.init and field.default is dataclasses.MISSING
        }
        parts |= {
            "cluster_id": self.state.cluster_id,
            "log": LocalLog(self.store, self.runtime, self.metrics),
            "topics": self.topics,
            "producers": LocalProducers(self.state),
            "groups": self.groups,
        }
        self.broker = Broker(
            **parts, quotas=self.quotas, settings=self.settings, consumers=self.consumers
        )

    def connect(self, client: str = "test") -> Client:
        return Client(self, client)

    def close(self) -> None:
        self.groups.close()
        self.state.close()
        self.runtime.step()
        self.store.close()
        self.runtime.step()


class Kept:
    def __init__(self) -> None:
        self.pieces: tuple[Piece, ...] | None = None

    def fill(self, *pieces: Piece) -> None:
        assert self.pieces is None
        self.pieces = pieces


class Client:
    """One connection: the replies of a server and the buffer it would keep."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.name = name
        self.muted_until_s = 0.0
        self.hung_up = False
        self.bench = bench
        self._line: list[Kept] = []
        self._left = b""
        self._seen = 0
        context = Context(
            broker=bench.broker,
            runtime=bench.runtime,
            config=bench.config,
            metrics=bench.metrics,
            peer="127.0.0.1:1",
            listener="kafka",
            advertised=lambda endpoint: Address("host.example", 9092),
        )
        self.session = KafkaSession(context, self)

    @property
    def full(self) -> bool:
        return self.bench.runtime.monotonic() < self.muted_until_s

    def mute(self, delay_ms: int) -> None:
        self.muted_until_s = self.bench.runtime.monotonic() + delay_ms / 1000

    def send(self, *pieces: Piece) -> None:
        self.place().fill(*pieces)

    def place(self) -> Kept:
        self._line.append(Kept())
        return self._line[-1]

    def hang_up(self) -> None:
        self.hung_up = True

    def feed(self, data: bytes = b"") -> None:
        buffer = bytearray(self._left + data)
        used = self.session.receive(memoryview(buffer))
        self._left = bytes(buffer[used:])
        self.bench.runtime.step()

    @property
    def left_bytes(self) -> int:
        return len(self._left)

    def answers(self) -> list[bytes]:
        """The frames that came since the last call, without their length."""
        data = bytearray()
        for kept in self._line:
            if kept.pieces is None:
                break
            for piece in kept.pieces:
                assert not isinstance(piece, FilePiece) or piece.length
                data += bytes(piece.length) if isinstance(piece, FilePiece) else piece
        found = []
        position = 0
        while position < len(data):
            size = int.from_bytes(data[position : position + 4], "big")
            found.append(bytes(data[position + 4 : position + 4 + size]))
            position += 4 + size
        new, self._seen = found[self._seen :], len(found)
        return new

    def request(self, key: int, version: int, **values: Any) -> bytes:
        schema: Any = load_request_schema(key, version)
        out = io.BytesIO()
        header: Any = schema.__header_schema__
        given = {
            "request_api_key": key,
            "request_api_version": version,
            "correlation_id": 7,
            "client_id": self.name,
        }
        entity_writer(header)(out, entity(header, given))
        entity_writer(schema)(out, entity(schema, values))
        return len(out.getvalue()).to_bytes(4, "big") + out.getvalue()

    def ask(self, key: int, version: int, **values: Any) -> Any:
        """One request, given as all fields of its newest version, and its answer."""
        self.feed(self.request(key, version, **values))
        (answer,) = self.answers()
        return read_answer(key, version, answer)


def entity(schema: Any, values: Mapping[str, Any]) -> Any:
    """A kio entity of plain dicts; what this version lacks is left out."""
    return schema(
        **{
            field.name: _convert(field.type, values[field.name])
            for field in dataclasses.fields(schema)
            if field.name in values
        }
    )


def _convert(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if NoneType in get_args(kind):
        kind = next(arm for arm in get_args(kind) if arm is not NoneType)
    if get_origin(kind) is tuple:
        return tuple(_convert(get_args(kind)[0], each) for each in value)
    return entity(kind, value) if dataclasses.is_dataclass(kind) else value


def read_answer(key: int, version: int, answer: bytes) -> Any:
    schema: Any = load_response_schema(key, version)
    start = 5 if schema.__header_schema__.__flexible__ else 4
    found, size = entity_reader(schema)(memoryview(answer)[start:], 0)
    assert size == len(answer) - start
    return found

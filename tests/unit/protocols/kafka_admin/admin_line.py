"""A client of one broker without a network: requests as kio entities, answers read back by kio."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, cast, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from pentalog.broker.port import Broker, Waiting
from pentalog.broker.state import State
from pentalog.config import Config
from pentalog.metrics import Metrics
from pentalog.model.types import Piece
from pentalog.protocols.kafka import codec
from pentalog.protocols.kafka.api import APIS
from pentalog.protocols.kafka.door import Door
from pentalog.protocols.kafka.messages import Call
from pentalog.protocols.kafka.serving import Gate, Serving
from pentalog.session import Address, Context


class QueueRuntime:
    """Does what is due, lanes included, when `run` is called."""

    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 0.0

    def soon(self, run: Callable[[], None]) -> None:
        self._due.append(run)

    def after(self, delay_ms: float, run: Callable[[], None]) -> NeverTimer:
        return NeverTimer()

    def offload(
        self,
        lane: str,
        work: Callable[[], Any],
        done: Callable[[Any, BaseException | None], None],
    ) -> None:
        def run() -> None:
            try:
                value = work()
            except Exception as error:
                done(None, error)
            else:
                done(value, None)

        self._due.append(run)

    def run(self) -> None:
        while self._due:
            self._due.popleft()()


class NeverTimer:
    def cancel(self) -> None:
        """Time stands still here: no timer ever fires."""


class AdminLine:
    """Serves requests one at a time and keeps the answers."""

    def __init__(self, broker: Broker, state: State, runtime: QueueRuntime, config: Config) -> None:
        self.broker = broker
        self.state = state
        self.runtime = runtime
        self.config = config
        self.answers: list[bytes] = []
        self.placed = 0
        self.waits: set[Waiting] = set()
        self._door = Door(broker.topics)

    def send(self, *pieces: Piece) -> None:
        self.answers.append(b"".join(bytes(piece) for piece in pieces))  # type: ignore[arg-type]

    def fill(self, *pieces: Piece) -> None:
        self.send(*pieces)

    def place(self) -> AdminLine:
        self.placed += 1
        return self

    def hang_up(self) -> None:
        raise AssertionError("no administrative request hangs up")

    def ask(self, key: int, version: int, **values: Any) -> Any:
        """Serve one request, given as all fields of its newest version; returns kio's answer."""
        request_type = load_request_schema(key, version)
        sent = io.BytesIO()
        entity_writer(request_type)(sent, entity(request_type, values))
        body = codec.decode(key, version, memoryview(bytearray(sent.getvalue())))
        self.answers.clear()
        context = self.context()
        call = Call(key, version, 7, "test", body, context, self._door, self)
        steps = APIS[key].serve(call)
        if steps is not None:
            serving = Serving(context, cast("Any", self), Gate(), self._failed, float)
            serving.run(call, steps, finishes=False)
        self.runtime.run()
        (answer,) = self.answers
        return read_answer(key, version, answer)

    def hold(self) -> Callable[[], None]:
        return lambda: None

    def _failed(self, call: Call, error: Exception) -> None:
        raise error

    def context(self) -> Context:
        return Context(
            broker=self.broker,
            runtime=self.runtime,
            config=self.config,
            metrics=Metrics(),
            peer="127.0.0.1:1",
            listener="kafka",
            advertised=lambda endpoint: Address(f"{endpoint}.example", 9092),
        )


def entity(schema: Any, values: Mapping[str, Any]) -> Any:
    """A kio entity of plain dicts; what this version lacks is left out."""
    return schema(
        **{
            field.name: _convert(field.type, values[field.name])
            for field in fields(schema)
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
    return entity(kind, value) if is_dataclass(kind) else value


def read_answer(key: int, version: int, answer: bytes) -> Any:
    response_type: Any = load_response_schema(key, version)
    assert int.from_bytes(answer[:4], "big") == len(answer) - 4
    assert int.from_bytes(answer[4:8], "big") == 7
    start = 9 if response_type.__header_schema__.__flexible__ else 8
    entity, size = entity_reader(response_type)(memoryview(answer)[start:], 0)
    assert size == len(answer) - start
    return entity

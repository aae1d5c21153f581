"""Somebody who writes numbered records through one door for as long as a test troubles it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, Producer
from cursus_subject import Wire as CursusWire
from fluvio_wire import Wire as FluvioWire
from fluvio_world import produce, read_produced, their_batch
from tests.support.cursus_world import Message, batch

from pentalog.clients.blipmq import BlipmqClient, BlipmqError, CircuitOpen, ConnectionLost
from pentalog.clients.rustlog import RustLogClient, RustLogError

_TURN_S: Final = 0.05
_PATIENCE_S: Final = 180.0
_BATCH: Final = 20
_PACE_S: Final = 0.005
"""Between batches: eleven of them and three nodes share the machine."""


class NotAcknowledged(Exception):
    """The door has answered, and not with yes."""


TROUBLE: Final = (
    NotAcknowledged,
    RustLogError,
    BlipmqError,
    ConnectionLost,
    CircuitOpen,
    OSError,
    EOFError,
)


class Door:
    """A connection through one gateway after another: whoever is lost is asked again elsewhere."""

    exactly_once = False
    """Nothing is written twice, though it is sent again."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._turn = 0

    @property
    def address(self) -> str:
        return self._addresses[self._turn % len(self._addresses)]

    def give_up(self) -> None:
        """Hang up, and go to the next."""
        self._turn += 1
        self.close()

    def append(self, topic: str, first: int, values: Sequence[bytes]) -> None:
        """Write these, the first of which has this number; returns once all are acknowledged."""
        raise NotImplementedError

    def close(self) -> None: ...


class KafkaDoor(Door):
    """The cluster itself, by an idempotent producer that outlives every trouble."""

    exactly_once = True

    def __init__(self, addresses: Sequence[str]) -> None:
        super().__init__(addresses)
        settings = {"bootstrap.servers": addresses[0], "enable.idempotence": True, "log_level": 0}
        self._producer = Producer(settings | {"delivery.timeout.ms": 180_000})

    def append(self, topic: str, first: int, values: Sequence[bytes]) -> None:
        refused: list[KafkaError] = []

        def told(error: KafkaError | None, _: object) -> None:
            if error is not None:
                refused.append(error)

        for value in values:
            self._producer.produce(topic, value, partition=0, on_delivery=told)
        assert self._producer.flush(_PATIENCE_S) == 0, "an idempotent producer gave up"
        assert not refused, refused


class ClientDoor(Door):
    """By one of our own clients."""

    _client: RustLogClient | BlipmqClient | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class RustLogDoor(ClientDoor):
    def append(self, topic: str, first: int, values: Sequence[bytes]) -> None:
        client = RustLogClient(self.address, timeout_s=20) if self._client is None else self._client
        assert isinstance(client, RustLogClient)
        self._client = client
        client.produce(topic, 0, list(values))


class BlipmqDoor(ClientDoor):
    def append(self, topic: str, first: int, values: Sequence[bytes]) -> None:
        client = BlipmqClient(self.address, timeout_s=20) if self._client is None else self._client
        assert isinstance(client, BlipmqClient)
        self._client = client
        client.publish(topic, *values)


class CursusDoor(Door):
    """An idempotent producer: what is sent again has the numbers it had."""

    exactly_once = True
    _wire: CursusWire | None = None

    def append(self, topic: str, first: int, values: Sequence[bytes]) -> None:
        if self._wire is None:
            self._wire = CursusWire(self.address)
            self._wire.socket.settimeout(20)
        messages = [
            Message(value, seq=first + 1 + place, producer=b"load", epoch=1)
            for place, value in enumerate(values)
        ]
        answer = self._wire.publish(batch(messages, topic=topic, acks="-1", idempotent=True))
        if answer["status"] != "OK":
            raise NotAcknowledged(answer)

    def close(self) -> None:
        if self._wire is not None:
            self._wire.socket.close()
            self._wire = None


class FluvioDoor(Door):
    _wire: FluvioWire | None = None

    def append(self, topic: str, first: int, values: Sequence[bytes]) -> None:
        if self._wire is None:
            self._wire = FluvioWire(int(self.address.rpartition(":")[2]), 24)
        request = produce(topic, their_batch(*values), isolation=-1, timeout_ms=15_000)
        ((_, ((_, error, _),)),) = read_produced(self._wire.ask(0, request))
        if error:
            raise NotAcknowledged(error)

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None


DOORS: Final[dict[str, type[Door]]] = {
    "kafka": KafkaDoor,
    "rustlog": RustLogDoor,
    "blipmq": BlipmqDoor,
    "cursus": CursusDoor,
    "fluvio-spu": FluvioDoor,
}


class Load:
    """Writes batches of numbers to a topic of its own until it is told to finish."""

    def __init__(self, name: str, topic: str, addresses: Sequence[str]) -> None:
        self.name = name
        self.topic = topic
        self.acknowledged = 0
        """Numbers below this one are."""
        self.troubles = 0
        self.exactly_once = DOORS[name].exactly_once
        self._addresses = addresses
        self._stop = threading.Event()
        self._mistakes: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name=f"load-{name}")
        self._thread.start()

    def wait_for(self, more: int) -> None:
        """Until so many more are acknowledged."""
        wanted = self.acknowledged + more
        deadline = time.monotonic() + _PATIENCE_S
        while self.acknowledged < wanted and not self._mistakes:
            assert time.monotonic() < deadline, f"{self.name}: no progress"
            time.sleep(_TURN_S)
        self._complain()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(2 * _PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        self._complain()

    def _complain(self) -> None:
        if self._mistakes:
            raise AssertionError(f"{self.name}: {self._mistakes[0]!r}") from self._mistakes[0]

    def _run(self) -> None:
        door = DOORS[self.name](self._addresses)
        try:
            while not self._stop.is_set():
                first = self.acknowledged
                values = [b"%d" % number for number in range(first, first + _BATCH)]
                self._append(door, first, values)
                self.acknowledged += _BATCH
                self._stop.wait(_PACE_S)
        except BaseException as mistake:
            self._mistakes.append(mistake)
        finally:
            door.close()

    def _append(self, door: Door, first: int, values: Sequence[bytes]) -> None:
        """Again until it is acknowledged."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                door.append(self.topic, first, values)
            except TROUBLE as trouble:
                self.troubles += 1
                door.give_up()
                if time.monotonic() > deadline:
                    raise AssertionError(f"never acknowledged: {trouble!r}") from trouble
                time.sleep(_TURN_S)
            else:
                return

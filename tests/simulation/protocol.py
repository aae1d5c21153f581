"""What the clients of RustLog and Fluvio have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from random import Random
from typing import TYPE_CHECKING, ClassVar

from tests.simulation.clients import Operation, Turns
from tests.simulation.crossing import Ends
from tests.simulation.judge import Being, TopicLife
from tests.simulation.kafka_admin import NAMES
from tests.simulation.wire import Connection

if TYPE_CHECKING:
    from tests.simulation.world import Task, World


class ProtocolClients:
    """Clients that do one thing at a time each, on one connection each."""

    protocol: ClassVar[str]
    roles: ClassVar[Mapping[str, str]]
    """Kind of step to the client that does it; one with a star is one of two.

    A kind is the name of the protocol and that of the method that starts the step.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.ends = Ends(world)
        self.last_commit = 0
        self.last_value = 0
        self._connections: dict[str, Connection] = {}
        self._turns = Turns(world)

    @property
    def kinds(self) -> Collection[str]:
        return self.roles

    def disconnect(self) -> None:
        self._connections.clear()
        self._turns.clear()
        self.ends.disconnect()

    def start(self, kind: str, random: Random) -> Task | None:
        method = kind.removeprefix(f"{self.protocol} ").replace(" ", "_")

        def begin(client: str, random: Random) -> Operation | None:
            operation = getattr(self, method)(client, random)
            return operation and (f"{self.protocol}: {operation[0]}", operation[1])

        return self._turns.start(self.roles[kind], random, begin)

    def endpoint(self, client: str) -> str:
        """The endpoint that a client connects to."""
        return self.protocol

    def connection(self, client: str) -> Connection:
        found = self._connections.get(client)
        if found is None or found.ended:
            found = self._connections[client] = self.world.connect(self.endpoint(client))
        return found

    def lose_some_answers(self, connection: Connection, random: Random) -> None:
        """Let some clients close their connection while a request is under way."""
        if random.random() < 0.08:
            self.world.runtime.after(random.choice((0, 0, 1, 20)), connection.close)

    def crash_sometimes(self, random: Random) -> None:
        """Cut the power soon after some answers: what they promise must be on the disk."""
        if random.random() < 0.03:
            self.world.crash_soon()

    async def write_through_kafka(
        self, life: TopicLife, index: int, random: Random, *, acks: int
    ) -> None:
        """Have a Kafka producer write just before something that depends on it."""
        kafka = self.world.kafka
        items = kafka.items(life, index, random)
        data = kafka.batch(items, random, life)
        now_ms = self.world.clock.now_ms()
        sent = self.world.judge.send(life, index, items, acks=acks, now_ms=now_ms)
        self.world.tell(f"batch {sent.number} to {life.label}-{index}, acks={acks}")
        await kafka.send(f"{self.protocol} writer", sent, data)

    def topic(self, random: Random, *, plain: bool = False) -> TopicLife | None:
        """A topic that is there; `plain`: it needs no keys."""
        alive = [life for life in self.world.judge.alive() if not (plain and life.compact)]
        return random.choice(alive) if alive else None

    def is_current(self, life: TopicLife) -> bool:
        return life.being is Being.ALIVE and self.world.judge.current(life.name) is life

    def free_names(self, *, size_max: int) -> list[str]:
        """Names that a topic can be created with."""
        current = {name: self.world.judge.current(name) for name in NAMES if len(name) <= size_max}
        return [
            name for name, life in current.items() if life is None or life.being is Being.DELETED
        ]

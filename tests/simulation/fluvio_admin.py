"""Fluvio's administrator: topics created, deleted, created again and grown."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation import fluvio_wire
from tests.simulation.fluvio_wire import Error
from tests.simulation.judge import Being, TopicLife

if TYPE_CHECKING:
    from tests.simulation.fluvio import FluvioClients

GONE_CODES: Final = (
    fluvio_wire.NOT_LEADER,
    fluvio_wire.TOPIC_NOT_FOUND,
    fluvio_wire.TOPIC_DELETED,
    fluvio_wire.PARTITION_NOT_LEADER,
    fluvio_wire.SESSION_NOT_FOUND,
)
"""What is answered for a topic that is not there."""
_NAME_MAX: Final = 63


class Administrator:
    """One client: it does one thing at a time."""

    def __init__(self, clients: FluvioClients) -> None:
        self._clients = clients
        self._world = clients.world

    async def _ask(self, key: int, body: bytes) -> Error:
        return fluvio_wire.status(await self._clients.ask("admin", key, body))

    def create(self, random: Random) -> Any:
        free = self._clients.free_names(size_max=_NAME_MAX)
        if not free:
            return None
        name = random.choice(free)
        return f"create {name}", self._create_topic(name, random)

    async def _create_topic(self, name: str, random: Random) -> None:
        judge = self._world.judge
        if name not in self._clients.free_names(size_max=_NAME_MAX):
            return  # another client was faster
        partitions = random.choice((1, 1, 2, 3))
        retention = random.random() < 0.15
        bytes_max = max(2048, 2 * self._world.settings.segment_bytes) if retention else None
        judge.loosen(name)
        life = judge.create_topic(name, partitions, retention=retention)
        self._clients.lose_some_answers(self._clients.connection("admin"), random)
        body = fluvio_wire.create_topic(name, partitions, bytes_max=bytes_max)
        error = await self._ask(fluvio_wire.CREATE, body)
        if error.code:
            doubt = len(judge.topics[name]) > 1 and self._world.had_fault
            self._clients.refused(f"create {name}", error, *((fluvio_wire.TOPIC_EXISTS,) * doubt))
            return
        life.being = Being.ALIVE
        self._world.tell(f"{name} has {partitions} partitions, at most {bytes_max} bytes each")

    def delete(self, random: Random) -> Any:
        life = self._clients.topic(random)
        if life is None:
            return None
        return f"delete {life.label}", self._delete_topic(life)

    async def _delete_topic(self, life: TopicLife) -> bool:
        if life.being is not Being.ALIVE:
            return False  # another client was faster
        self._world.judge.loosen(life.name)
        life.being, life.doomed = Being.DELETING, True
        body = fluvio_wire.delete_topic(life.name)
        error = await self._ask(fluvio_wire.DELETE, body)
        if error.code:
            self._clients.refused(f"delete {life.label}", error)
            return False
        self._world.tell(f"{life.label} deleted")
        life.being = Being.DELETED
        return True

    def recreate(self, random: Random) -> Any:
        alive = [life for life in self._world.judge.alive() if len(life.name) <= _NAME_MAX]
        if not alive:
            return None
        life = random.choice(alive)
        return f"delete and create {life.label}", self._recreate_topic(life, random)

    async def _recreate_topic(self, life: TopicLife, random: Random) -> None:
        if await self._delete_topic(life):
            await self._create_topic(life.name, random)

    def grow(self, random: Random) -> Any:
        life = self._clients.topic(random)
        if life is None or not life.partitions == life.partitions_maybe <= 5:
            return None
        return f"grow {life.label}", self._add_partition(life)

    async def _add_partition(self, life: TopicLife) -> None:
        if life.partitions_maybe > life.partitions:
            return  # another client was faster
        life.partitions_maybe = wanted = life.partitions + 1
        body = fluvio_wire.add_partitions(life.name, 1)
        error = await self._ask(fluvio_wire.UPDATE, body)
        if error.code:
            allowed = () if self._clients.is_current(life) else GONE_CODES
            self._clients.refused(f"grow {life.label}", error, *allowed)
        else:
            life.partitions = max(wanted, life.partitions)

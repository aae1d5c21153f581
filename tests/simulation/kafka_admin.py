"""Kafka's administrator: topics created, deleted, created again, grown, altered and trimmed."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation import kafka_wire
from tests.simulation.judge import ANYWHERE, Being, TopicLife

from pentalog.clients.kafka.messages import ms
from pentalog.model.compression import CODECS

if TYPE_CHECKING:
    from tests.simulation.kafka import KafkaClients

LONG_NAME: Final = "x" * 249
DERIVED: Final = "derived"
"""A topic that the broker writes itself; `derived.py` judges it."""
NAMES: Final = ("orders", "events", LONG_NAME)
_TIMEOUT: Final = ms(30_000)
UNKNOWN_TOPIC: Final = 3
_EXISTS: Final = 36
_OUT_OF_RANGE: Final = 1
_POLICY_VIOLATION: Final = 44
TOMBSTONES_MS: Final = 600_000
RETENTION_MS: Final = 43_200_000


def _gone(life: TopicLife) -> tuple[int, ...]:
    """What is answered if a client of another protocol has deleted the topic meanwhile."""
    return () if life.being is Being.ALIVE else (UNKNOWN_TOPIC,)


def _deletion(life: TopicLife) -> dict[str, Any]:
    return {"topic_names": (life.name,), "timeout": _TIMEOUT}


class Administrator:
    """One client: it does one thing at a time."""

    def __init__(self, clients: KafkaClients) -> None:
        self._clients = clients
        self._world = clients.world

    async def _ask(self, key: int, fields: dict[str, Any]) -> Any:
        return await self._clients.ask("admin", key, fields)

    def _alive(self, random: Random) -> TopicLife | None:
        alive = self._world.judge.alive()
        return random.choice(alive) if alive else None

    def create(self, random: Random) -> Any:
        current = self._world.judge.current
        free = []
        for name in NAMES:
            life = current(name)
            if life is None or life.being is Being.DELETED:
                free.append(name)
        if not free:
            return None
        name = random.choice(free)
        return f"create {name[:20]}", self._create(name, random)

    async def _create(self, name: str, random: Random) -> None:
        judge = self._world.judge
        current = judge.current(name)
        if current is not None and current.being is not Being.DELETED:
            return  # another client was faster
        judge.loosen(name)
        life, fields = self._new_topic(name, random)
        answer = await self._ask(kafka_wire.CREATE_TOPICS, fields)
        self._created(life, answer.topics[0])

    def _new_topic(self, name: str, random: Random) -> tuple[TopicLife, dict[str, Any]]:
        """A topic that may be there from now on, and the request that creates it."""
        settings = self._world.settings
        compact = random.random() < settings.compact
        policy = "compact" if compact else "delete"
        by_age = policy == "delete" and random.random() < settings.aging
        retention = by_age or (policy == "delete" and random.random() < 0.15)
        configs = {"cleanup.policy": policy}
        if policy == "compact":
            configs["min.cleanable.dirty.ratio"] = "0.01"
            configs["delete.retention.ms"] = str(TOMBSTONES_MS)
        if by_age:
            configs["retention.ms"] = str(RETENTION_MS)
        elif retention:
            configs["retention.bytes"] = str(2 * settings.segment_bytes)
        if settings.lanes and random.random() < (0.8 if settings.pipelines else 0.4):
            configs["compression.type"] = random.choice(CODECS)
        if random.random() < 0.1:
            configs["flush.messages"] = "1"
        if random.random() < 0.1:
            configs["flush.ms"] = "5"
        if random.random() < 0.5:
            configs["subscription.attempts.max"] = "-1"
        partitions = random.choice((1, 1, 2, 3))
        life = self._world.judge.create_topic(
            name,
            partitions,
            compact=policy == "compact",
            retention=retention,
            retention_ms=RETENTION_MS if by_age else 0,
            tombstones_ms=TOMBSTONES_MS,
            limited=True,
        )
        if "compression.type" in configs:
            life.codec = CODECS.index(configs["compression.type"])
        self._world.tell(f"{life.label} is to have {partitions} partitions, {configs}")
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        return life, {"topics": [topic], "timeout": _TIMEOUT, "validate_only": False}

    def _created(self, life: TopicLife, answer: Any) -> None:
        if answer.error_code == 0:
            life.topic_id, life.being = answer.topic_id, Being.ALIVE
            self._world.tell(f"{life.label} has id {answer.topic_id}")
            return
        doubt = len(self._world.judge.topics[life.name]) > 1 and self._world.had_fault
        what = f"create {life.name[:20]}"
        self._clients.refused(what, answer.error_code, *((_EXISTS,) * doubt))

    def delete(self, random: Random) -> Any:
        life = self._alive(random)
        if life is None:
            return None
        return f"delete {life.label}", self.delete_topic(life)

    async def delete_topic(self, life: TopicLife) -> bool:
        if life.being is not Being.ALIVE:
            return False  # another client was faster
        self._world.judge.loosen(life.name)
        life.being, life.doomed = Being.DELETING, True
        answer = await self._ask(kafka_wire.DELETE_TOPICS, _deletion(life))
        return self._deleted(life, answer.responses[0])

    def _deleted(self, life: TopicLife, answer: Any) -> bool:
        if answer.error_code:
            self._clients.refused(f"delete {life.label}", answer.error_code)
            return False
        self._world.tell(f"{life.label} deleted")
        life.being = Being.DELETED
        return True

    def recreate(self, random: Random) -> Any:
        life = self._alive(random)
        if life is None:
            return None
        return f"delete and create {life.label}", self.recreate_topic(life, random)

    async def recreate_topic(self, life: TopicLife, random: Random) -> None:
        if await self.delete_topic(life):
            await self._create(life.name, random)

    async def replace_topic(self, life: TopicLife, random: Random) -> None:
        """Delete and create a topic by one write, so that it is absent for no time."""
        if life.being is not Being.ALIVE or life.topic_id is None:
            return  # after a crash nothing but the id says which of them is there
        self._world.judge.loosen(life.name)
        life.being, life.doomed = Being.DELETING, True
        new, fields = self._new_topic(life.name, random)
        frames = (
            kafka_wire.request(kafka_wire.DELETE_TOPICS, _deletion(life)),
            kafka_wire.request(kafka_wire.CREATE_TOPICS, fields),
        )
        connection = self._clients.connection("admin")
        deleted, created = connection.next_frame(), connection.next_frame()
        connection.send_bytes(b"".join(len(each).to_bytes(4, "big") + each for each in frames))
        answer = kafka_wire.answer(kafka_wire.DELETE_TOPICS, await deleted)
        self._deleted(life, answer.responses[0])
        answer = kafka_wire.answer(kafka_wire.CREATE_TOPICS, await created)
        self._created(new, answer.topics[0])

    def grow(self, random: Random) -> Any:
        life = self._alive(random)
        if life is None or life.partitions_maybe > 5:
            return None
        return f"grow {life.label}", self._grow(life)

    async def _grow(self, life: TopicLife) -> None:
        if life.being is not Being.ALIVE:
            return  # a pipelining client replaces it
        wanted = life.partitions_maybe + 1
        life.partitions_maybe = wanted
        topic = {"name": life.name, "count": wanted, "assignments": None}
        fields = {"topics": [topic], "timeout": _TIMEOUT, "validate_only": False}
        answer = (await self._ask(kafka_wire.CREATE_PARTITIONS, fields)).results[0]
        if answer.error_code:
            self._clients.refused(f"grow {life.label}", answer.error_code, *_gone(life))
        else:
            life.partitions = wanted

    def alter(self, random: Random) -> Any:
        life = self._alive(random)
        if life is None:
            return None
        return f"alter {life.label}", self._alter(life, random)

    async def _alter(self, life: TopicLife, random: Random) -> None:
        if life.being is not Being.ALIVE:
            return  # a pipelining client replaces it
        name, value = random.choice(
            (
                ("segment.bytes", random.choice(("1024", "3000", "20000"))),
                ("index.interval.bytes", random.choice(("0", "200", "4096"))),
                ("flush.messages", random.choice(("1", "3", "9223372036854775807"))),
                ("segment.index.bytes", random.choice(("16", "64", "10485760"))),
            )
        )
        change = {"name": name, "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": life.name, "configs": [change]}
        fields = {"resources": [resource], "validate_only": False}
        answer = (await self._ask(kafka_wire.ALTER_CONFIGS, fields)).responses[0]
        if answer.error_code:
            self._clients.refused(f"alter {life.label}", answer.error_code, *_gone(life))

    def trim(self, random: Random) -> Any:
        lives = self._world.judge.alive()
        alive = [life for life in lives if not (life.compact or life.sourced)]
        if not alive:
            return None
        life = random.choice(alive)
        index = random.randrange(life.partitions)
        return f"trim {life.label}-{index}", self._trim(life, index, random)

    async def _trim(self, life: TopicLife, index: int, random: Random) -> None:
        if life.being is not Being.ALIVE:
            return  # a pipelining client replaces it
        model = life.model(index)
        promised = life.required_end(index)
        low = max(model.floor, model.floor_maybe)
        if promised < low:
            return
        offset = random.choice((random.randint(low, promised), promised, -1))
        # -1 is the high watermark, wherever that is.
        model.floor_maybe = max(model.floor_maybe, ANYWHERE if offset < 0 else offset)
        place = {"partition_index": index, "offset": offset}
        topic = {"name": life.name, "partitions": [place]}
        fields = {"topics": [topic], "timeout": _TIMEOUT}
        answer = await self._ask(kafka_wire.DELETE_RECORDS, fields)
        result = answer.topics[0].partitions[0]
        code = result.error_code
        if code:
            known = (_OUT_OF_RANGE,) if life.retention else ()
            known += (_POLICY_VIOLATION,) if life.unsure else ()
            if code == _OUT_OF_RANGE and not (life.retention or self._world.had_fault):
                self._world.violate("not readable", f"{life.label}-{index} ends before {offset}")
            if self._world.files.faults.sync_failed or code == _OUT_OF_RANGE:
                known += (_OUT_OF_RANGE,)
            what = f"trim {life.label}-{index} to {offset}"
            self._clients.refused(what, code, *known, *_gone(life))
            await self._look_at_start(life, index)
            return
        self._world.tell(f"{life.label}-{index} starts at {result.low_watermark}")
        model.floor = max(model.floor, result.low_watermark)
        if model.floor_maybe == ANYWHERE:
            model.floor_maybe = model.floor
        failed = self._world.files.faults.sync_failed
        if offset < 0 and result.low_watermark < promised and not failed:
            self._world.violate(
                "not readable",
                f"DeleteRecords took {result.low_watermark} for the end of {life.label}-{index}; "
                f"up to {promised} was acknowledged before",
            )

    async def _look_at_start(self, life: TopicLife, index: int) -> None:
        """Expect a visible log start to survive: consumers skip everything below it."""
        if life.retention:
            return  # retention moves the start too, and a power cut may undo that
        frame = kafka_wire.list_offsets(life.name, [index], kafka_wire.EARLIEST, committed=False)
        data = await self._clients.connection("admin").ask(frame)
        found = kafka_wire.answer(kafka_wire.LIST_OFFSETS, data).topics[0].partitions[0]
        if not found.error_code:
            self._world.tell(f"{life.label}-{index} shows {found.offset} as its start")
            model = life.model(index)
            model.floor = max(model.floor, found.offset)

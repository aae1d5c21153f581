"""Kafka clients: producers of every kind, consumers, and an administrator.

`KafkaClients.start` turns a step of the plan into one operation.  An operation tells the judge
what it is about to do, sends bytes, and tells the judge what came back.  `Lost` may be raised at
every await; what was told before stays an open attempt then.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation import contents, kafka_wire
from tests.simulation.clients import Turns
from tests.simulation.judge import (
    ANYWHERE,
    Being,
    Item,
    Outcome,
    Sent,
    TopicLife,
    Transaction,
)
from tests.simulation.kafka_admin import RETENTION_MS, Administrator
from tests.simulation.kafka_impostor import intrude
from tests.simulation.kafka_offsets import (
    commit_offset,
    confirm_offsets,
    look_up_offset,
    stage_offsets,
)
from tests.simulation.kafka_pipeline import Pipelines
from tests.simulation.violation import Violation
from tests.simulation.wire import Connection

from pentalog.clients.kafka.messages import ms
from pentalog.model import batch
from pentalog.model.types import Record

if TYPE_CHECKING:
    from tests.simulation.world import Task, World

_STORAGE: Final = 56
_STORAGE_CODES: Final = frozenset({_STORAGE, 15, 16, 51})
"""What may be answered while the disk fails."""
_LOSSY_CODES: Final = frozenset({1, 45, 47, 48, 49, 53, 59, 87, 90})
"""What may be answered after a power cut that took what producers, topics and logs knew."""
_SEQUENCE_CODES: Final = (45, 59)
"""What a producer is answered whose last batches are not known any more."""
_UNKNOWN_TOPIC: Final = 3
_MOVED_CODES: Final = (_UNKNOWN_TOPIC, 45, 48, 59, 87)
"""What a batch is answered whose topic has been replaced by another one."""
_OUT_OF_RANGE: Final = 1
_INVALID_TIMESTAMP: Final = 32
"""What a batch is answered whose time was an hour ahead when the clock had been set back."""
_DUPLICATE: Final = 46
_CLIENTS: Final = {
    "produce": "producer*",
    "pipeline": "pipeliner*",
    "idempotent": "idempotent*",
    "transaction": "transactional*",
    "fetch": "consumer*",
    "commit": "consumer*",
    "create": "admin",
    "delete": "admin",
    "recreate": "admin",
    "grow": "admin",
    "alter": "admin",
    "trim": "admin",
}
"""Which client does what; one with a star is one of two.  Each does one thing at a time."""


class Idempotent:
    """An idempotent producer: it sends a batch until it knows what became of it."""

    def __init__(self) -> None:
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[tuple[int, int], int] = {}
        self.pending: tuple[Sent, bytes] | None = None


class Transactional:
    def __init__(self, name: str) -> None:
        self.name = name
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[tuple[int, int], int] = {}
        self.ready = False
        """The producer is initialised, and nothing of it is in doubt."""
        self.late: tuple[TopicLife, int, bytes] | None = None
        """A batch of its last transaction that has not arrived yet."""


class KafkaClients:
    def __init__(self, world: World) -> None:
        self.world = world
        self._connections: dict[str, Connection] = {}
        self._turns = Turns(world)
        self._count = 0
        self._once = [Idempotent(), Idempotent()]
        self.admin = Administrator(self)
        self.pipelines = Pipelines(self)
        self._transactional = [Transactional("t0"), Transactional("t1")]
        self.committing: list[Transaction] = []
        """Those with offsets that a client has asked to commit."""

    @property
    def kinds(self) -> Collection[str]:
        return _CLIENTS

    def disconnect(self) -> None:
        """The broker has gone."""
        self._connections.clear()
        self._turns.clear()
        self.pipelines.disconnect()
        if self.world.judge.lossy:
            # Their ids may be given to others now.
            for producer in self._once:
                producer.pending, producer.producer_id = None, -1
            for each in self._transactional:
                each.ready, each.late = False, None

    def connection(self, client: str) -> Connection:
        found = self._connections.get(client)
        if found is None or found.ended:
            found = self._connections[client] = self.world.connect()
        return found

    def start(self, kind: str, random: Random) -> Task | None:
        """Begin one operation; None if its client is busy or has nothing to do."""
        role = _CLIENTS[kind]
        if role == "admin":
            return self._turns.start(role, random, lambda _, dice: getattr(self.admin, kind)(dice))
        if kind == "pipeline":
            return self._turns.start(role, random, self.pipelines.start)
        return self._turns.start(role, random, getattr(self, f"_{kind}"))

    async def ask(self, client: str, key: int, fields: dict[str, Any]) -> Any:
        frame = await self.connection(client).ask(kafka_wire.request(key, fields))
        return kafka_wire.answer(key, frame)

    def refused(self, what: str, code: int, *allowed: int) -> None:
        """Check an error code: without a fault only those of the situation itself are right."""
        self.world.tell(f"{what}: error {code}")
        if code in allowed:
            return
        if self.world.had_fault and code in _STORAGE_CODES:
            return
        if self.world.clock.was_set_back and code == _INVALID_TIMESTAMP:
            return
        if self.world.judge.ever_lossy and code in _LOSSY_CODES:
            return
        raise Violation("error", f"{what} was refused with code {code}")

    def _topic(self, random: Random, *, compact: bool | None = None) -> TopicLife | None:
        alive = [
            topic
            for topic in self.world.judge.alive()
            if compact is None or topic.compact == compact
        ]
        return random.choice(alive) if alive else None

    # Producing

    def next_number(self) -> int:
        self._count += 1
        return self._count

    def items(self, topic: TopicLife, index: int, random: Random) -> list[Item]:
        items = []
        next_offset = topic.required_end(index)
        for number in range(random.choice((1, 1, 1, 2, 3, 8))):
            identity = b"<%d>" % self.next_number()
            key: bytes | None = None
            if topic.compact or random.random() < 0.3:
                key = b"k%d" % random.randint(0, 4)
            value: bytes | None = contents.value(
                random,
                identity,
                self.world.disk,
                self.world.settings,
                next_offset + number,
            )
            if topic.compact and random.random() < 0.3:
                value = None
            items.append(Item(identity, key, value))
        return items

    def batch(self, items: list[Item], random: Random, topic: TopicLife, **producer: Any) -> bytes:
        records = [
            Record(item.value, item.key, ((kafka_wire.ID_HEADER, item.identity),)) for item in items
        ]
        now = self.world.clock.now_ms()
        # Where records go by their age, most are old: segments hold a few young ones.
        old_ms = 2 * RETENTION_MS
        ages_ms = (0, *(old_ms,) * 7) if topic.retention_ms else (0, 0, 0, 1_000, old_ms)
        timestamp = now - random.choice(ages_ms)
        # Imitations are to lie in the files as they are.
        codec = 0 if self.world.settings.hostile else random.choice((0, 0, 0, 1, 3))
        return bytes(batch.build(records, timestamp_ms=timestamp, codec=codec, **producer))

    def _produce(self, client: str, random: Random) -> Any:
        topic = self._topic(random)
        if topic is None:
            return None
        index = random.randrange(topic.partitions)
        acks = random.choice((-1, -1, 1, 1, 0))
        items = self.items(topic, index, random)
        data = self.batch(items, random, topic)
        sent = self.world.judge.send(
            topic, index, items, acks=acks, now_ms=self.world.clock.now_ms()
        )
        name = f"produce {sent.number} to {topic.label}-{index}, acks={acks}, {len(data)} bytes"
        return name, self.send(client, sent, data)

    async def send(self, client: str, sent: Sent, data: bytes, tid: str | None = None) -> int:
        sent.timestamp_ms = kafka_wire.newest_time(data)
        frame = kafka_wire.produce(sent.topic.name, sent.index, data, sent.acks, tid)
        connection = self.connection(client)
        if sent.acks == 0:
            connection.send_frame(frame)
            return 0
        answer = kafka_wire.produced(await connection.ask(frame))
        if answer.code == 0:
            self.world.tell(f"batch {sent.number} acknowledged at {answer.base_offset}")
            self.world.judge.acknowledge(sent, answer.base_offset)
        elif answer.code != _DUPLICATE:
            moved = sent.topic.being is not Being.ALIVE or sent.loose
            allowed = _MOVED_CODES if moved else ()
            if sent.transaction is not None:
                allowed += (48, 51, 53)
                allowed += _SEQUENCE_CODES if self._forgotten(sent) else ()
            self.refused(f"batch {sent.number}", answer.code, *allowed)
        return answer.code

    def _forgotten(self, sent: Sent) -> bool:
        """May the broker have deleted what it knew of the batch's producer?"""
        return sent.topic.retention or sent.topic.model(sent.index).floor_maybe > 0

    def _idempotent_of(self, client: str) -> Idempotent:
        return self._once[int(client[-1])]

    def _idempotent(self, client: str, random: Random) -> Any:
        producer = self._idempotent_of(client)
        if producer.pending is not None:
            sent, data = producer.pending
            if sent.topic.being is Being.ALIVE and not sent.loose and random.random() < 0.8:
                return f"retry batch {sent.number}", self._retry(client, producer, sent, data)
            producer.pending, producer.producer_id = None, -1
        topic = self._topic(random)
        if topic is None:
            return None
        index = random.randrange(topic.partitions)
        items = self.items(topic, index, random)
        place = (topic.number, index)
        return (
            f"idempotent produce to {topic.label}-{index}",
            self._produce_once(client, producer, topic, index, place, items, random),
        )

    async def _produce_once(
        self,
        client: str,
        producer: Idempotent,
        topic: TopicLife,
        index: int,
        place: tuple[int, int],
        items: list[Item],
        random: Random,
    ) -> None:
        if producer.producer_id < 0 and not await self._identify(client, producer):
            return
        sequence = producer.sequences.get(place, 0)
        data = self.batch(
            items,
            random,
            topic,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
        )
        sent = self.world.judge.send(topic, index, items, acks=-1, now_ms=self.world.clock.now_ms())
        self.world.tell(f"batch {sent.number}: producer {producer.producer_id}, {sequence}")
        producer.pending = (sent, data)
        await self._retry(client, producer, sent, data)

    async def _identify(self, client: str, producer: Idempotent) -> bool:
        fields = {
            "transactional_id": None,
            "transaction_timeout": ms(600_000),
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = await self.ask(client, kafka_wire.INIT_PRODUCER_ID, fields)
        if answer.error_code:
            self.refused("InitProducerId", answer.error_code)
            return False
        producer.producer_id, producer.epoch = answer.producer_id, answer.producer_epoch
        producer.sequences = {}
        return True

    async def _retry(self, client: str, producer: Idempotent, sent: Sent, data: bytes) -> None:
        was_absent, sent.absent = sent.absent, False
        frame = kafka_wire.produce(sent.topic.name, sent.index, data, -1)
        answer = kafka_wire.produced(await self.connection(client).ask(frame))
        place = (sent.topic.number, sent.index)
        if answer.code == 0:
            self.world.tell(f"batch {sent.number} acknowledged at {answer.base_offset}")
            self.world.judge.acknowledge(sent, answer.base_offset)
            producer.sequences[place] = producer.sequences.get(place, 0) + len(sent.items)
            producer.pending = None
            if sent.loose:
                producer.producer_id = -1
            return
        # A storage error does not say that nothing was written.
        sent.absent = was_absent and not sent.loose and answer.code not in _STORAGE_CODES
        if answer.code in _SEQUENCE_CODES and (
            not self.world.judge.synced or self._forgotten(sent)
        ):
            producer.pending, producer.producer_id = None, -1
            return
        if answer.code == _DUPLICATE:
            producer.pending = None
            producer.sequences[place] = producer.sequences.get(place, 0) + len(sent.items)
            return
        moved = sent.topic.being is not Being.ALIVE or sent.loose
        self.refused(f"batch {sent.number}", answer.code, *(_MOVED_CODES if moved else ()))
        if moved:
            producer.pending, producer.producer_id = None, -1

    # Transactions

    def _transaction(self, client: str, random: Random) -> Any:
        producer = self._transactional[int(client[-1])]
        topics = [topic for topic in self.world.judge.alive() if not topic.compact]
        if not topics:
            return None
        places = [
            (topic, random.randrange(topic.partitions))
            for topic in random.choices(topics, k=random.randint(1, 3))
        ]
        commit = random.random() < 0.7
        name = (
            f"transaction of {producer.name} over {len(places)}, {'commit' if commit else 'abort'}"
        )
        return name, self._transact(client, producer, places, commit, random)

    async def _transact(
        self,
        client: str,
        producer: Transactional,
        places: list[tuple[TopicLife, int]],
        commit: bool,
        random: Random,
    ) -> None:
        if producer.late is not None:
            late, producer.late = producer.late, None
            await intrude(self, client, producer.name, *late)
        if not producer.ready and not await self._initialise(client, producer):
            return
        producer.ready = False
        transaction = self.world.judge.transaction()
        identity = {
            "transactional_id": producer.name,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
        }
        good = True
        for topic, index in places:
            good = good and await self._enlist(client, producer, topic, index)
            good = good and await self._write_in(
                client, producer, transaction, topic, index, random
            )
        if good and not self.world.judge.synced and random.random() < 0.2:
            # A cut may take the epoch and leave the batches that were written under it.
            self.world.crash_soon()
        committed: list[tuple[Any, int]] = []
        if good and random.random() < 0.5:
            good = await stage_offsets(self, client, identity, places[0], random, committed)
        commit = commit and good
        if not commit and random.random() < 0.2:
            return  # left open: the next initialisation, or the timeout, ends it
        transaction.outcome = Outcome.UNKNOWN if commit else transaction.outcome
        if commit:
            transaction.offsets = [(entry, entry.attempt(value)) for entry, value in committed]
            self.committing.append(transaction)
        answer = await self.ask(client, kafka_wire.END_TXN, {**identity, "committed": commit})
        if answer.error_code:
            self.refused(
                f"EndTxn of {transaction.number}", answer.error_code, *(() if good else (48,))
            )
            return
        self.world.tell(f"transaction {transaction.number} {'committed' if commit else 'aborted'}")
        transaction.outcome = Outcome.COMMITTED if commit else Outcome.ABORTED
        confirm_offsets(transaction)
        producer.ready = good
        if good and random.random() < 0.2:
            topic, index = places[0]
            _, data = self._next_batch(producer, topic, index, random)
            producer.late = topic, index, data

    async def _initialise(self, client: str, producer: Transactional) -> bool:
        fields = {
            "transactional_id": producer.name,
            "transaction_timeout": ms(600_000),
            "producer_id": -1,
            "producer_epoch": -1,
        }
        for _ in range(20):
            answer = await self.ask(client, kafka_wire.INIT_PRODUCER_ID, fields)
            if answer.error_code != 51:
                break
        if answer.error_code:
            self.refused("InitProducerId", answer.error_code, 51)
            return False
        producer.producer_id, producer.epoch = answer.producer_id, answer.producer_epoch
        producer.sequences = {}
        producer.ready = True
        return True

    async def _enlist(
        self, client: str, producer: Transactional, topic: TopicLife, index: int
    ) -> bool:
        fields = {
            "v3_and_below_transactional_id": producer.name,
            "v3_and_below_producer_id": producer.producer_id,
            "v3_and_below_producer_epoch": producer.epoch,
            "v3_and_below_topics": [{"name": topic.name, "partitions": (index,)}],
        }
        for _ in range(20):
            answer = await self.ask(client, kafka_wire.ADD_PARTITIONS, fields)
            result = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
            code = result.partition_error_code
            if code != 51:
                break
        if code:
            moved = topic.being is not Being.ALIVE
            self.refused("AddPartitionsToTxn", code, 51, *((_UNKNOWN_TOPIC,) if moved else ()))
        return not code

    async def _write_in(
        self,
        client: str,
        producer: Transactional,
        transaction: Transaction,
        topic: TopicLife,
        index: int,
        random: Random,
    ) -> bool:
        place = (topic.number, index)
        items, data = self._next_batch(producer, topic, index, random)
        if random.random() < 0.1:
            other = next(each for each in self._transactional if each is not producer)
            await intrude(self, client, other.name, topic, index, data)
        sent = self.world.judge.send(
            topic,
            index,
            items,
            acks=-1,
            now_ms=self.world.clock.now_ms(),
            transaction=transaction,
        )
        self.world.tell(f"batch {sent.number} in transaction {transaction.number}")
        code = await self.send(client, sent, data, producer.name)
        if code or sent.loose:
            # Which topic knows this sequence now, the producer cannot tell.
            producer.ready = False
            return False
        producer.sequences[place] = producer.sequences.get(place, 0) + len(items)
        return True

    def _next_batch(
        self, producer: Transactional, topic: TopicLife, index: int, random: Random
    ) -> tuple[list[Item], bytes]:
        items = self.items(topic, index, random)
        return items, self.batch(
            items,
            random,
            topic,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequences.get((topic.number, index), 0),
            transactional=True,
        )

    def register(self, group: str, topic: TopicLife, index: int) -> Any:
        key = (group, topic.name, topic.number, index)
        name = f"offset of {group} in {topic.label}-{index}"
        return self.world.judge.register(key, name)

    # Consuming

    def _fetch(self, client: str, random: Random) -> Any:
        topic = self._topic(random)
        if topic is None:
            return None
        index = random.randrange(topic.partitions)
        committed = random.random() < 0.4
        return (
            f"fetch from {topic.label}-{index}, {'' if committed else 'un'}committed",
            self._read(client, topic, index, committed, random),
        )

    async def _read(
        self, client: str, topic: TopicLife, index: int, committed: bool, random: Random
    ) -> None:
        model = topic.model(index)
        promised, floor_before = topic.required_end(index), model.floor
        where = random.choice(("start", "middle", "end", "record"))
        floor = max(model.floor, model.floor_maybe if model.floor_maybe < ANYWHERE else 0)
        offset = {"start": floor, "end": max(floor, promised)}.get(where, -1)
        if offset < 0:
            known = [s.offset for s in model.sents if s.required and s.offset is not None]
            known = [at for at in known if at >= floor]
            offset = random.choice(known) if known and where == "record" else floor
        bytes_max = random.choice((1, 1000, 100_000))
        frame = kafka_wire.fetch(
            topic.name,
            index,
            offset,
            committed=committed,
            bytes_max=bytes_max,
            wait_ms=random.choice((0, 0, 50, 500)),
        )
        answer = kafka_wire.fetched(await self.connection(client).ask(frame), offset)
        if topic.being is not Being.ALIVE or self.world.judge.current(topic.name) is not topic:
            return
        if answer.code:
            late = self.world.judge.may_start_behind(topic, index, offset)
            # A trim that was refused may name an offset beyond an end that is lost by now.
            early = offset > max(promised, model.floor)
            allowed = (_OUT_OF_RANGE,) if late or early else ()
            self.refused(f"fetch at {offset}", answer.code, *allowed)
            return
        if committed:
            kept = kafka_wire.committed_only(answer)
            end = min(answer.next_offset, answer.stable)
            self.world.judge.observe_committed(topic, index, kept, start=offset, end=end)
            return
        self.world.judge.observe(
            topic,
            index,
            answer.records,
            start=offset,
            end=answer.next_offset,
            floor=floor_before,
        )
        failed = self.world.files.faults.sync_failed
        if offset < promised and not answer.records and not topic.compact and not failed:
            self.world.violate(
                "not readable",
                f"offset {offset} of {topic.label}-{index} gives nothing; up to {promised} was "
                "acknowledged before",
            )

    def _commit(self, client: str, random: Random) -> Any:
        if random.random() < 0.4:
            return look_up_offset(self, client, random)
        topic = self._topic(random)
        return None if topic is None else commit_offset(self, client, topic, random)

"""Kafka producers that send several requests in one write, and do not wait for answers.

Some batches have no acks, some name their topic by its id, and one may be refused for its size; the
topic may be deleted and created again while they are under way.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.simulation import expectations, kafka_wire, pipelining
from tests.simulation.judge import Item, Sent, TopicLife
from tests.simulation.kafka_wire import Produced
from tests.simulation.pipelining import is_current
from tests.simulation.violation import Violation
from tests.simulation.wire import Lost, Reply

from pentalog.model import batch
from pentalog.model.types import Record

if TYPE_CHECKING:
    from tests.simulation.kafka import KafkaClients

_TOO_LARGE: Final = 10
_UNKNOWN_TOPIC: Final = 3
_UNKNOWN_ID: Final = 100
_GONE: Final = (_UNKNOWN_TOPIC, _UNKNOWN_ID)
_INVALID_RECORD: Final = 87


class Request(NamedTuple):
    number: int
    frame: bytes
    sent: Sent
    oversized: bool
    """It must be refused."""
    by_id: bool

    @property
    def acks(self) -> int:
        return self.sent.acks

    @property
    def read(self) -> Callable[[bytes], Produced]:
        return kafka_wire.produced_by_id if self.by_id else kafka_wire.produced


class Pipelines:
    def __init__(self, clients: KafkaClients) -> None:
        self._clients = clients
        self._world = clients.world
        self._count = 0
        self.unanswered: list[tuple[Any, int, Sent]] = []
        """Batches without acks: their connection, and how much of it must be accepted first."""

    def disconnect(self) -> None:
        self.unanswered.clear()

    def _number(self) -> int:
        self._count += 1
        return self._count

    def farewell(self, random: Random) -> Any:
        """Batches without acks, just before a clean stop."""
        return self.start("farewell", random, acks=0)

    def start(self, client: str, random: Random, acks: int | None = None) -> Any:
        alive = self._world.judge.alive()
        if not alive:
            return None
        main = random.choice(alive)
        same = random.choice((None, None, -1, 1, 0)) if acks is None else acks
        by_id = random.random() < 0.4
        place = (main, random.randrange(main.partitions))
        requests = []
        for _ in range(random.choice((2, 3, 3, 5, 8))):
            topic, index = place
            if random.random() < 0.25:
                topic = random.choice(alive)
                index = random.randrange(topic.partitions)
            wanted = random.choice((-1, -1, 1, 0)) if same is None else same
            requests.append(self._request(topic, index, wanted, by_id, random))
        sents = [request.sent for request in requests]
        expectations.chain(sents)
        numbers = ", ".join(f"{sent.number} (acks={sent.acks})" for sent in sents)
        name = f"pipeline {numbers} to {main.label}-{place[1]}{', by id' * by_id}"
        replaces = acks is None and random.random() < 0.25
        return name, self._send(client, requests, place, replaces, random)

    def _request(
        self, topic: TopicLife, index: int, acks: int, by_id: bool, random: Random
    ) -> Request:
        number = self._number()
        world = self._world
        items: list[Item] = self._clients.items(topic, index, random)
        oversized = bool(acks) and topic.limited and random.random() < 0.08
        if oversized:
            identity, key, _ = items[0]
            items = [Item(identity, key, pipelining.oversized(random, identity))]
            records = [Record(items[0].value, key, ((kafka_wire.ID_HEADER, identity),))]
            data = bytes(batch.build(records, timestamp_ms=world.clock.now_ms()))
        else:
            data = self._clients.batch(items, random, topic)
        sent = world.judge.send(topic, index, items, acks=acks, now_ms=world.clock.now_ms())
        sent.by_id = by_id and topic.topic_id is not None
        sent.timestamp_ms = kafka_wire.newest_time(data)
        if sent.by_id:
            frame = kafka_wire.produce_by_id(topic.topic_id, index, data, acks, number)
        else:
            frame = kafka_wire.produce(topic.name, index, data, acks, number=number)
        return Request(number, frame, sent, oversized, sent.by_id)

    async def _send(
        self,
        client: str,
        requests: list[Request],
        place: tuple[TopicLife, int],
        replaces: bool,
        random: Random,
    ) -> None:
        topic, index = place
        connection = self._clients.connection(client)
        answered = [request for request in requests if request.acks]
        frames = [request.frame for request in requests]
        end_number = self._number() if random.random() < 0.4 else 0
        if end_number:
            frames.append(
                kafka_wire.list_offsets(
                    topic.name, [index], kafka_wire.LATEST, committed=False, number=end_number
                )
            )
        data, ends = b"", []
        for frame in frames:
            data += len(frame).to_bytes(4, "big") + frame
            ends.append(connection.sent_bytes + len(data))
        self.unanswered += [
            (connection, end, request.sent)
            for request, end in zip(requests, ends, strict=False)
            if not request.acks
        ]
        replies = [connection.next_frame() for _ in range(len(answered) + bool(end_number))]
        pipelining.send_cut(connection, data, random)
        if replaces:
            await self._clients.admin.replace_topic(topic, random)
        try:
            await self._answers(requests, answered, replies)
            if end_number:
                await self._check_end(topic, index, end_number, requests, replies[-1])
        except Lost:
            # The broker closes a connection for a batch without acks that it refuses, also one of
            # an earlier operation.
            without = [sent for line, _, sent in self.unanswered if line is connection]
            moved = any(sent.loose or not is_current(self._world, sent.topic) for sent in without)
            fault = self._world.had_fault or self._world.clock.was_set_back
            if not (self._world.dead or self._world.judge.ever_lossy or moved or fault):
                raise Violation("hung up", "Kafka closes a connection") from None
            raise

    async def _answers(
        self, requests: list[Request], answered: list[Request], replies: list[Reply]
    ) -> None:
        for request, reply in zip(answered, replies, strict=False):
            frame = await reply
            pipelining.check_number(request.number, kafka_wire.number_of(frame))
            self._answered(request, request.read(frame))
            if request.sent.acked:
                self._imply(requests, request.sent)
        pipelining.check_order(request.sent for request in requests)

    def _answered(self, request: Request, answer: Produced) -> None:
        sent = request.sent
        moved = not is_current(self._world, sent.topic) or sent.loose
        allowed = (*_GONE, _INVALID_RECORD) if moved else ()
        if answer.code:
            allowed += (_TOO_LARGE,) * request.oversized
            self._clients.refused(f"batch {sent.number}", answer.code, *allowed)
            if answer.code == _TOO_LARGE:
                expectations.refuse(sent)
            return
        if request.oversized:
            pipelining.accept_oversized(self._world, sent)
        self._world.tell(f"batch {sent.number} acknowledged at {answer.base_offset}")
        self._world.judge.acknowledge(sent, answer.base_offset)

    def _imply(self, requests: list[Request], later: Sent) -> None:
        """What has no acks and was sent before an acknowledged batch is there as well."""
        world = self._world
        if world.had_fault or world.clock.was_set_back or world.judge.ever_lossy:
            return
        for request in requests:
            sent = request.sent
            if sent is later:
                return
            if sent.acks or (sent.topic, sent.index) != (later.topic, later.index):
                continue
            if is_current(world, later.topic) and not later.loose:
                expectations.imply(sent, later)

    async def _check_end(
        self, topic: TopicLife, index: int, number: int, requests: list[Request], reply: Reply
    ) -> None:
        frame = await reply
        pipelining.check_number(number, kafka_wire.number_of(frame))
        found = kafka_wire.answer(kafka_wire.LIST_OFFSETS, frame).topics[0].partitions[0]
        if not is_current(self._world, topic):
            return
        if found.error_code:
            self._clients.refused("ListOffsets", found.error_code)
            return
        sents = [request.sent for request in requests]
        here = [
            s for s in sents if (s.topic, s.index) == (topic, index) and s.acked and not s.loose
        ]
        promised = max((s.next_offset for s in here if s.offset is not None), default=0)
        failed = self._world.files.faults.sync_failed
        if found.offset < promised and not failed:
            self._world.violate(
                "not readable", f"{topic.label}-{index} ends at {found.offset}, not at {promised}"
            )

    # A clean stop

    def accepted(self) -> list[Sent]:
        """Batches without acks that the broker has taken from their connections."""
        return [
            sent
            for connection, end, sent in self.unanswered
            if connection.accepted_bytes >= end and not connection.ended and not sent.loose
        ]

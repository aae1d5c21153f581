"""Transactional Cursus clients: they repeat what was not answered, and commit or abort.

A transaction may take several steps of the plan, and outlive its connection and the broker: the
client then repeats the request that had no answer.
"""

from __future__ import annotations

import re
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation import cursus_wire
from tests.simulation.cursus_wire import Answer
from tests.simulation.judge import UNPLACED, Being, Item, Outcome, Sent, TopicLife, Transaction
from tests.simulation.register import Register
from tests.simulation.violation import Violation
from tests.simulation.wire import Lost

from pentalog.runtime import Timer

if TYPE_CHECKING:
    from tests.simulation.cursus import CursusClients

_TIMEOUT_MS: Final = 55_000
"""A transaction that is open for longer may have been aborted by the broker."""
_WHO: Final = re.compile(r"producerId=(\S+) epoch=(\d+)")
_MOVED: Final = ("topic_not_found", "partition_not_found", "invalid_payload")
_FENCED: Final = ("GEN_MISMATCH", "member_not_found", "group_not_found", "NOT_OWNER")
_STORAGE: Final = ("broker_error", "transaction_manager_not_available")
_UNREADABLE: Final = "not known whether"
_REPEATED: Final = 0.9
"""Share of requests without an answer that are repeated."""


class Pending:
    """A TXN_PUBLISH that is repeated until it is answered."""

    def __init__(self, sent: Sent, text: str) -> None:
        self.sent = sent
        self.text = text


class Producer:
    def __init__(self, name: str) -> None:
        self.name = name
        self.start_over()

    def start_over(self) -> None:
        """The next step initialises the producer again."""
        self.who = ""
        """The parameters that name it; empty unless a transaction is open."""
        self.transaction = Transaction(-1)
        self.began_ms = 0.0
        self.seq = 0
        self.sents: list[Sent] = []
        self.pending: Pending | None = None
        self.result = ""
        """How it is to end, once that was sent."""
        self.staged: list[tuple[Register, int, bool]] = []
        """Offsets in the transaction, and whether that was confirmed."""
        self.attempts: list[tuple[Register, int]] = []
        self.topics: list[TopicLife] = []

    @property
    def kept(self) -> bool:
        """Must the broker know the transaction after any crash?"""
        acked = any(sent.acked and not sent.loose for sent in self.sents)
        return acked or any(confirmed for *_, confirmed in self.staged)


class TransactionalClients:
    def __init__(self, owner: CursusClients) -> None:
        self.owner = owner
        self.world = owner.world
        self._producers = [Producer("c0"), Producer("c1")]

    def disconnect(self) -> None:
        if self.world.judge.lossy:
            for producer in self._producers:
                producer.start_over()

    def transact(self, client: str, random: Random) -> Any:
        producer = self._producers[int(client[-1])]
        topics = [topic for topic in self.world.judge.alive() if not topic.compact]
        if not topics:
            return None
        chosen = random.choices(topics, k=random.choice((1, 1, 2)))
        return f"transaction of {producer.name}", self._transact(client, producer, chosen, random)

    async def _transact(
        self, client: str, producer: Producer, topics: list[TopicLife], random: Random
    ) -> None:
        if producer.who and not self._is_sound(producer):
            producer.start_over()
        if not producer.who and not await self._begin(client, producer):
            return
        if producer.pending is not None and random.random() > _REPEATED:
            producer.start_over()  # the next initialisation aborts it
            return
        if producer.pending is not None and not await self._publish(client, producer, random):
            return
        if not producer.result:
            for topic in random.choices(topics, k=random.choice((0, 1, 2, 3))):
                self._next(producer, topic, random)
                if not await self._publish(client, producer, random):
                    return
            if random.random() < 0.3 and not await self._stage(client, producer, topics[0], random):
                return
            if random.random() < 0.3:
                return  # it stays open until another step
        await self._end(client, producer, random)

    def _is_sound(self, producer: Producer) -> bool:
        """Are all topics of the transaction still those that it wrote to?"""
        same = all(
            topic.being is Being.ALIVE and self.world.judge.current(topic.name) is topic
            for topic in producer.topics
        )
        return same and not any(sent.loose for sent in producer.sents)

    # The wire

    async def _ask(
        self, client: str, random: Random, text: str, message: bytes | None = None
    ) -> Answer:
        """Ask; some clients close their connection meanwhile, and get no answer."""
        connection = self.owner.connection(client)
        reply = connection.ask(cursus_wire.command(text, message))
        closing: Timer | None = None
        if random.random() < 0.08:
            closing = self.world.runtime.after(random.choice((0, 0, 1, 20)), connection.close)
        try:
            answer = cursus_wire.answer(await reply)
        except Lost:
            self.world.tell(f"no answer to {text.split()[0]} of {client}")
            raise
        if closing is not None:
            closing.cancel()
        self.owner.cut_soon()
        return answer

    def _refused(self, producer: Producer, what: str, answer: Answer, *allowed: str) -> None:
        """Check a refusal, and initialise the producer again unless the request may be repeated."""
        self.world.tell(f"{what} of {producer.name}: {answer.text[:150]}")
        late = self.world.clock.elapsed_ms - producer.began_ms >= _TIMEOUT_MS
        if "producer fenced" in answer.text and late:
            if not self.world.judge.ever_lossy:
                producer.transaction.outcome = Outcome.ABORTED
            producer.start_over()
            return
        if self.world.judge.ever_lossy or any(answer.code.startswith(word) for word in allowed):
            producer.start_over()
            return
        if "is not open" in answer.text and not producer.kept and not producer.result:
            producer.start_over()  # the beginning was known to a process that is gone
            return
        if self.world.had_fault and (answer.code in _STORAGE or _UNREADABLE in answer.text):
            return
        if _UNREADABLE in answer.text and self._may_be_deleted(producer):
            producer.start_over()
            return
        raise Violation("error", f"{what} was refused: {answer.text[:200]}")

    def _may_be_deleted(self, producer: Producer) -> bool:
        return any(
            sent.topic.retention
            or sent.topic.unsure
            or any(model.floor_maybe for model in sent.topic.models.values())
            for sent in producer.sents
        )

    # Steps of a transaction

    async def _begin(self, client: str, producer: Producer) -> bool:
        abandoned = producer.transaction
        text = f"INIT_PRODUCER_ID transactional_id={producer.name}"
        answer = cursus_wire.answer(await self.owner.ask(client, cursus_wire.command(text)))
        found = _WHO.search(answer.text)
        if answer.code or found is None:
            self._refused(producer, "INIT_PRODUCER_ID", answer)
            return False
        if abandoned.outcome is Outcome.OPEN:
            abandoned.outcome = Outcome.ABORTED
        who = f"transactional_id={producer.name} producerId={found[1]} epoch={found[2]}"
        answer = await self.owner.command(client, f"BEGIN_TXN {who}")
        if answer.code:
            self._refused(producer, "BEGIN_TXN", answer)
            return False
        producer.start_over()
        producer.who, producer.began_ms = who, self.world.clock.elapsed_ms
        producer.transaction = self.world.judge.transaction()
        return True

    def _next(self, producer: Producer, topic: TopicLife, random: Random) -> None:
        """Make the next message, with or without a partition."""
        asked = random.choice((None, -1, 0, random.randrange(topic.partitions)))
        index = UNPLACED if asked in (None, -1) else asked or 0
        value = self.owner.next_value(topic, index, random)
        key = b"k%d" % random.randint(0, 4) if random.random() < 0.3 else None
        producer.seq += 1
        place = "" if asked is None else f" partition={asked}"
        text = f"TXN_PUBLISH {producer.who} topic={topic.name}{place} seqNum={producer.seq}"
        text += f" key={key.decode()}" if key else ""
        sent = self.world.judge.send(
            topic, index, [Item(value, key, value)], acks=-1,
            now_ms=self.world.clock.now_ms(), transaction=producer.transaction,
        )  # fmt: skip
        producer.sents.append(sent)
        producer.topics.append(topic)
        producer.pending = Pending(sent, text)
        self.world.tell(
            f"batch {sent.number} in transaction {producer.transaction.number}, {producer.name} "
            f"seqNum {producer.seq}, to {topic.label}{place}"
        )

    async def _publish(self, client: str, producer: Producer, random: Random) -> bool:
        """Send the pending message; returns whether it is in the transaction."""
        assert producer.pending is not None
        sent = producer.pending.sent
        sent.absent = False
        answer = await self._ask(client, random, producer.pending.text, sent.items[0].value)
        moved = sent.topic.being is not Being.ALIVE or sent.loose
        if answer.code:
            allowed = _MOVED if moved else _MOVED[2:] * sent.topic.unsure
            self._refused(producer, f"batch {sent.number}", answer, *allowed)
            return False
        if sent.loose:
            producer.start_over()
            return False
        index = answer.number("partition")
        self.world.tell(f"batch {sent.number} acknowledged in partition {index}")
        self.world.judge.find_in(sent.topic, index, sent)
        sent.acked = True
        producer.pending = None
        return True

    async def _stage(
        self, client: str, producer: Producer, topic: TopicLife, random: Random
    ) -> bool:
        index = random.randrange(topic.partitions)
        end = topic.required_end(index)
        if producer.staged or not end:
            return True
        offset = random.randint(1, end)
        group = f"group-{client}"
        member = await self.owner.join(client, topic, group)
        if not member:
            return True
        text = f"SEND_OFFSETS_TO_TXN {producer.who} topic={topic.name} group={group} {member}"
        register = self.owner.register(group, topic, index)
        producer.staged = [(register, offset, False)]
        producer.topics.append(topic)
        answer = await self._ask(client, random, f"{text} P{index}:{offset}")
        if answer.code:
            self.owner.forget_member(group, topic)
            moved = _MOVED if topic.being is not Being.ALIVE else ()
            allowed = (*_FENCED, "offset_regression", "invalid_offset", *moved)
            self._refused(producer, "SEND_OFFSETS_TO_TXN", answer, *allowed)
            return False
        producer.staged = [(register, offset, True)]
        return True

    async def _end(self, client: str, producer: Producer, random: Random) -> None:
        transaction = producer.transaction
        if not producer.result:
            producer.result = "commit" if random.random() < 0.7 else "abort"
            if producer.result == "commit":
                transaction.outcome = Outcome.UNKNOWN
                producer.attempts = [
                    (register, register.attempt(offset)) for register, offset, _ in producer.staged
                ]
        result = producer.result
        answer = await self._ask(client, random, f"END_TXN {producer.who} result={result}")
        if answer.code:
            self._refused(producer, "END_TXN", answer)
            return
        self.world.tell(f"transaction {transaction.number}: {result} answered")
        transaction.outcome = Outcome.COMMITTED if result == "commit" else Outcome.ABORTED
        for (register, number), (*_, confirmed) in zip(
            producer.attempts, producer.staged, strict=False
        ):
            if confirmed:
                register.confirm(number)
        producer.start_over()

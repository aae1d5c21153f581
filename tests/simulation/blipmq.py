"""BlipMQ clients: publishers and subscribers at both qualities.

Everything is fenced by a PING: a PONG without a NACK before it says that everything before the PING
is done.  Deliveries are judged as they arrived, also those that a crash kept from their client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation import (
    blipmq_audit,
    blipmq_pipeline,
    blipmq_wire,
    contents,
    pipelining,
)
from tests.simulation.blipmq_judge import Acked, Given, Polling, Subscription, Subscriptions
from tests.simulation.blipmq_wire import ACK, NACK, PONG, PUBLISH, Frame, Refusal
from tests.simulation.clients import Turns
from tests.simulation.judge import UNPLACED, Being, Item, Sent, TopicLife
from tests.simulation.violation import Violation
from tests.simulation.wire import Connection, Lost

if TYPE_CHECKING:
    from tests.simulation.world import Task, World

_CLIENTS: Final = {
    "blip_publish": "publisher*",
    "blip_pipeline": "pipeliner*",
    "blip_subscribe": "subscriber",
    "blip_poll": "poller*",
    "blip_create": "creator",
}
"""Which client does what; one with a star is one of two.  Each does one thing at a time."""
CREATED: Final = "blips"
"""The topic that only BlipMQ creates, by using it."""
_SUBSCRIPTIONS_MAX: Final = 6
_CUT_SOON: Final = 0.02
"""Share of answers after which the power is cut: one that left too early is wrong only then."""
_UNKNOWN_TAG: Final = 404
_NO_TOPIC: Final = 404
_MOVED_CODES: Final = (_NO_TOPIC, 400)
"""What a message is answered whose topic is gone, or is another one that demands keys."""
_STORAGE: Final = 500


class Line:
    """A connection, and what has arrived on it and was not judged yet."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arrived: deque[bytes] = deque()
        self.polling: Polling | None = None
        connection.tap = self.arrived.append
        connection.send_bytes(blipmq_wire.login())


class BlipmqClients:
    def __init__(self, world: World) -> None:
        self.world = world
        self.subscriptions = Subscriptions(world)
        self._lines: dict[str, Line] = {}
        self._dropped: list[Line] = []
        """Connections that their clients have closed in the middle of something."""
        self._turns = Turns(world)
        self._count = 0
        self._correlation = 0

    @property
    def kinds(self) -> Collection[str]:
        return _CLIENTS

    def start(self, kind: str, random: Random) -> Task | None:
        begin = getattr(self, f"_{kind.removeprefix('blip_')}")
        return self._turns.start(_CLIENTS[kind], random, begin)

    def audit(self, *, restart: bool) -> None:
        blipmq_audit.audit(self, restart=restart)

    def judge_all_arrived(self) -> None:
        """Judge what came before the broker went."""
        self._judge_arrived(*self._dropped, *self._lines.values())

    def disconnect(self) -> None:
        self._lines.clear()
        self._dropped.clear()
        self._turns.clear()
        self.subscriptions.ended()

    # The wire

    def line(self, client: str, *, creates: bool = False) -> Line:
        found = self._lines.get(client)
        if found is None or found.connection.ended:
            config = replace(self.world.config, auto_create_topics=True) if creates else None
            found = self._lines[client] = Line(self.world.connect("blipmq", config))
        return found

    def next_correlation(self) -> int:
        self._correlation += 1
        return self._correlation

    async def fence(self, line: Line, data: bytes, cut: Random | None = None) -> list[Frame]:
        """Send frames and a PING; returns the answers before the PONG, judged.

        `cut` says where their delivery is cut.
        """
        correlation = self.next_correlation()
        data += blipmq_wire.ping(correlation)
        if cut is None:
            line.connection.send_bytes(data)
        else:
            pipelining.send_cut(line.connection, data, cut)
        answers: list[Frame] = []
        while True:
            try:
                received = blipmq_wire.read(await line.connection.next_frame())
            except Lost:
                if not self.world.dead:
                    raise Violation("hung up", "BlipMQ closes a connection") from None
                raise
            if received.kind == PONG:
                if received.correlation != correlation:
                    raise Violation("correlation", f"PONG answers {received.correlation}")
                self._judge_arrived(*self._dropped, line)
                if self.world.random.random() < _CUT_SOON:
                    self.world.crash_soon()
                return answers
            if received.kind != ACK or received.correlation:  # those are of the login
                answers.append(received)

    def _judge_arrived(self, *lines: Line) -> None:
        for line in lines:
            while line.arrived:
                received = blipmq_wire.read(line.arrived.popleft())
                if received.kind != PUBLISH:
                    continue
                if line.polling is None:
                    raise Violation("stray", "a delivery that was not polled for")
                self.subscriptions.observe(line.polling, blipmq_wire.delivery(received))

    def check_refusal(self, what: str, refusal: Refusal, *allowed: int) -> None:
        self.world.tell(f"{what}: refused with {refusal.code}: {refusal.text[:100]}")
        if refusal.code in allowed or (self.world.had_fault and refusal.code == _STORAGE):
            return
        raise Violation("error", f"{what} was refused: {refusal.code} {refusal.text[:200]}")

    # Publishing

    def _topic(self, random: Random) -> TopicLife | None:
        alive = [topic for topic in self.world.judge.alive() if not topic.compact]
        return random.choice(alive) if alive else None

    def attempts(
        self, topic: TopicLife, quality: int, acks: int, count: int, random: Random
    ) -> list[tuple[int, Sent]]:
        """Messages to publish, by correlation id; the judge knows of them."""
        attempts = []
        offset = max((topic.required_end(index) for index in range(topic.partitions)), default=0)
        for number in range(count):
            self._count += 1
            value = contents.value(
                random,
                b"<b%d>" % self._count,
                self.world.disk,
                self.world.settings,
                offset + number,
            )
            self.subscriptions.qualities[value] = quality
            now_ms = self.world.clock.now_ms()
            item = Item(value, None, value)
            sent = self.world.judge.send(topic, UNPLACED, [item], acks=acks, now_ms=now_ms)
            attempts.append((self.next_correlation(), sent))
        return attempts

    def _publish(self, client: str, random: Random) -> Any:
        topic = self._topic(random)
        if topic is None:
            return None
        quality = random.choice((0, 1, 1))
        fenced = quality or random.random() < 0.7
        acks = (-1 if quality else 1) if fenced else 0
        count = random.choice((1, 1, 2, 3, 8))
        attempts = self.attempts(topic, quality, acks, count, random)
        first = attempts[0][1].number
        name = f"publish {count} to {topic.label} at quality {quality}, batch {first}"
        return name, self._send(client, topic, quality, attempts)

    async def _send(
        self,
        client: str,
        topic: TopicLife,
        quality: int,
        attempts: list[tuple[int, Sent]],
        *,
        creates: bool = False,
    ) -> bool:
        """Returns whether everything was accepted."""
        data = b"".join(
            blipmq_wire.publish(correlation, quality, topic.name, sent.items[0].value or b"")
            for correlation, sent in attempts
        )
        line = self.line(client, creates=creates)
        if not attempts[0][1].acks:
            line.connection.send_bytes(data)
            return True
        answers = await self.fence(line, data)
        refused = {
            answer.correlation: blipmq_wire.refusal(answer)
            for answer in answers
            if answer.kind == NACK
        }
        for correlation, sent in attempts:
            if correlation in refused:
                moved = topic.being is not Being.ALIVE or sent.loose
                allowed = _MOVED_CODES if (moved or topic.unsure) and not creates else ()
                self.check_refusal(f"batch {sent.number}", refused[correlation], *allowed)
            elif not sent.loose:
                sent.acked, sent.absent = True, False
        self.world.tell(f"batch {attempts[0][1].number} and after: {len(refused)} refused")
        return not refused

    def _pipeline(self, client: str, random: Random) -> Any:
        return blipmq_pipeline.start(self, client, random)

    def _create(self, client: str, random: Random) -> Any:
        """Create a topic by using it."""
        life = self.world.judge.current(CREATED)
        if life is not None and life.being is not Being.DELETED:
            return None
        return f"create {CREATED} by its first use", self._use_first(client, random)

    async def _use_first(self, client: str, random: Random) -> None:
        judge = self.world.judge
        current = judge.current(CREATED)
        if current is not None and current.being is not Being.DELETED:
            return  # another client was faster
        judge.loosen(CREATED)
        life = judge.create_topic(CREATED, self.world.config.default_partitions)
        if random.random() < 0.5:
            life.being = Being.ALIVE  # what is published first is as good as any other record
            attempts = self.attempts(life, 1, -1, 2, random)
            life.being = Being.MAYBE
            done = await self._send(client, life, 1, attempts, creates=True)
        else:
            done = await self._open(client, life, random.random() < 0.5, creates=True)
        if done:
            life.being = Being.ALIVE
            self.world.tell(f"{CREATED} is there")

    # Subscribing

    def _subscribe(self, client: str, random: Random) -> Any:
        alive = self.world.judge.alive()
        known = [each.topic.being for each in self.subscriptions.open.values()]
        if not alive or known.count(Being.ALIVE) >= _SUBSCRIPTIONS_MAX:
            return None
        topic = random.choice(alive)
        leased = random.random() < 0.6
        return f"subscribe to {topic.label} at quality {int(leased)}", self._open(
            client, topic, leased
        )

    async def _open(
        self, client: str, topic: TopicLife, leased: bool, *, creates: bool = False
    ) -> bool:
        before = frozenset(
            sent for model in topic.models.values() for sent in model.sents if sent.acked
        )
        correlation = self.next_correlation()
        line = self.line(client, creates=creates)
        data = blipmq_wire.subscribe(correlation, topic.name, int(leased))
        answers = await self.fence(line, data)
        if len(answers) != 1 or answers[0].correlation != correlation:
            raise Violation("correlation", f"SUBSCRIBE has {len(answers)} answers")
        if answers[0].kind == NACK:
            moved = topic.being is not Being.ALIVE
            allowed = (_NO_TOPIC,) if moved and not creates else ()
            refusal = blipmq_wire.refusal(answers[0])
            self.check_refusal(f"subscription to {topic.label}", refusal, *allowed)
            return False
        number = blipmq_wire.subscription_of(answers[0])
        self.world.tell(f"subscription {number} of {topic.label}, quality {int(leased)}")
        certain = topic.being is Being.ALIVE and self.world.judge.current(topic.name) is topic
        if certain or creates:
            self.subscriptions.add(number, topic, leased=leased, before=before)
        return True

    def _poll(self, client: str, random: Random) -> Any:
        if not self.subscriptions.open:
            return None
        subscription = random.choice(list(self.subscriptions.open.values()))
        count = random.choice((1, 1, 2, 5, 20))
        name = f"poll subscription {subscription.number} {count} times"
        return name, self._consume(client, subscription, count, random)

    async def _consume(
        self, client: str, subscription: Subscription, count: int, random: Random
    ) -> None:
        since = len(subscription.tags)
        if random.random() < 0.04:
            self._drop(client, subscription, count)
            return
        await self.poll(client, subscription, count)
        held = [
            given
            for given in subscription.given.values()
            if given.quality and given.acked in (Acked.NO, Acked.MAYBE)
        ]
        share = random.choice((0.0, 0.5, 1.0, 1.0))
        chosen = [given for given in held if random.random() < share]
        if random.random() < 0.3 or since == len(subscription.tags):
            chosen = chosen[:3]
        if chosen:
            await self.acknowledge(client, subscription, chosen)

    async def poll(self, client: str, subscription: Subscription, count: int) -> int:
        """Poll so often; returns how many deliveries came.  Fewer: nothing more was there."""
        line = self.line(client)
        polling, data = self._polling(subscription, count)
        line.polling = polling
        due = self.subscriptions.due(subscription)
        polling.begin()
        answers = await self.fence(line, data)
        polling.end()
        for answer in answers:
            if answer.kind == NACK:
                refusal = blipmq_wire.refusal(answer)
                gone = subscription.topic.being is not Being.ALIVE
                self.check_refusal(f"poll of {subscription}", refusal, *((_NO_TOPIC,) * gone))
        delivered = sum(answer.kind == PUBLISH for answer in answers)
        alone = not polling.overlapped and subscription.topic.being is Being.ALIVE
        if delivered < count and alone and not self.world.had_fault:
            self.subscriptions.check_delivered(subscription, due)
        return delivered

    def _drop(self, client: str, subscription: Subscription, count: int) -> None:
        """Poll and close the connection: what is delivered to it is lost."""
        self.world.tell(f"{client} polls {subscription} and goes")
        subscription.dropped_mark = self.world.judge.sent_count
        line = self.line(client)
        line.polling, data = self._polling(subscription, count)
        line.polling.overlapped = True
        line.connection.send_bytes(data)
        self.world.runtime.after(0, line.connection.close)
        self._dropped.append(self._lines.pop(client))

    def _polling(self, subscription: Subscription, count: int) -> tuple[Polling, bytes]:
        """An operation that polls so often, and its frames."""
        correlations = [self.next_correlation() for _ in range(count)]
        polling = Polling(
            subscription,
            frozenset(correlations),
            self.subscriptions.tick(),
            self.world.clock.elapsed_ms,
            gone=subscription.topic.being is Being.DELETED,
        )
        frames = [blipmq_wire.poll(each, subscription.number) for each in correlations]
        return polling, b"".join(frames)

    async def acknowledge(
        self, client: str, subscription: Subscription, chosen: list[Given]
    ) -> None:
        for given in chosen:
            self.subscriptions.acknowledging(given)
        data = b"".join(blipmq_wire.acknowledge(given.tag, subscription.number) for given in chosen)
        answers = await self.fence(self.line(client), data)
        refused = set()
        for answer in answers:
            if answer.kind != NACK:
                raise Violation("stray", f"ACK is answered with a frame of type {answer.kind}")
            self.check_refusal(f"ACK to {subscription}", blipmq_wire.refusal(answer), _UNKNOWN_TAG)
            refused.add(answer.correlation)
        for given in chosen:
            if given.tag in refused:
                self.subscriptions.refused(subscription, given)
            else:
                self.subscriptions.acknowledged(given)
        if chosen:
            tags = [given.tag for given in chosen if given.tag not in refused]
            self.world.tell(f"{subscription}: acknowledged {tags}, refused {sorted(refused)}")

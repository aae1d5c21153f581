"""The model of BlipMQ subscriptions: what was delivered, acknowledged, and is still due.

Quality 0 is delivered at most once, also across kills and power cuts.  Quality 1 is delivered until
it is acknowledged, and never again once that acknowledgement is durable.  The broker writes
acknowledgements some times a second, so a crash may undo the last ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from tests.simulation.blipmq_wire import Delivery
from tests.simulation.judge import UNPLACED, Being, Judge, Outcome, Sent, TopicLife
from tests.simulation.kafka_audit import is_open
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

LEASE_MS: Final = 100
"""The shortest lease that the simulated topics have."""
_DURABLE_AFTER_MS: Final = 5_000
"""Without faults, an acknowledgement this old is in the state file."""
_TAG_PARTITION: Final = 1 << 48


class Acked(Enum):
    NO = "no"
    MAYBE = "maybe"
    """An attempt has no answer, or a crash may have undone it."""
    CONFIRMED = "confirmed"
    DURABLE = "durable"


@dataclass(eq=False)
class Given:
    """One record as one subscription has delivered it."""

    sent: Sent
    number: int
    quality: int
    tag: int
    times: int = 0
    life: int = -1
    """The life of its newest delivery."""
    since_ms: float = 0.0
    """That delivery was made after this moment."""
    acked: Acked = Acked.NO
    tries: int = 0
    acked_tick: int = -1
    acked_ms: float = 0.0
    dead: bool = False
    """It is among the dead letters."""

    def __str__(self) -> str:
        return f"record {self.number} of {self.sent} (tag {self.tag}, quality {self.quality})"


@dataclass(eq=False)
class Subscription:
    number: int
    topic: TopicLife
    leased: bool
    began: int
    """Batches with higher numbers were sent after the broker had confirmed the subscription."""
    before: frozenset[Sent]
    """Acknowledged before the subscription was asked for."""
    given: dict[bytes, Given] = field(default_factory=dict)
    tags: dict[int, bytes] = field(default_factory=dict)
    firsts: dict[int, int] = field(default_factory=dict)
    """Offsets that tags count from, by partition."""
    newest: dict[tuple[int, int], int] = field(default_factory=dict)
    """The highest place of a first delivery, by partition and quality."""
    polled_by: list[Polling] = field(default_factory=list)
    """Operations under way."""
    dropped_mark: int = -1
    """Of batches up to this number, deliveries were perhaps lost with a connection."""

    def __str__(self) -> str:
        return f"subscription {self.number} of {self.topic.label}"


@dataclass(eq=False)
class Polling:
    """One operation that polls a subscription."""

    subscription: Subscription
    polls: frozenset[int]
    tick: int
    since_ms: float
    gone: bool
    """The topic's deletion was confirmed before."""
    overlapped: bool = False
    """Another operation polled the same subscription at the same time."""

    def begin(self) -> None:
        others = self.subscription.polled_by
        self.overlapped = bool(others)
        for other in others:
            other.overlapped = True
        others.append(self)

    def end(self) -> None:
        self.subscription.polled_by.remove(self)


class Subscriptions:
    """What all subscriptions have delivered."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.open: dict[int, Subscription] = {}
        self.qualities: dict[bytes, int] = {}
        """Of the messages that BlipMQ clients published; all other records count as 1."""
        self._tick = 0
        self._crash_mark = -1
        """Batches up to this number were sent before the last crash."""

    @property
    def _judge(self) -> Judge:
        return self._world.judge

    @property
    def _life(self) -> int:
        return self._world.counts["lives"]

    def tick(self) -> int:
        self._tick += 1
        return self._tick

    # What clients are told

    def add(
        self, number: int, topic: TopicLife, *, leased: bool, before: frozenset[Sent]
    ) -> Subscription:
        if number in self.open:
            raise Violation("number reused", f"{self.open[number]} exists; {topic.label} got it")
        made = Subscription(number, topic, leased, self._judge.sent_count, before)
        self.open[number] = made
        return made

    def observe(self, polling: Polling, delivery: Delivery) -> None:
        """Check one delivery."""
        subscription = polling.subscription
        topic = subscription.topic
        if polling.gone or delivery.topic != topic.name:
            raise Violation("stray", f"{subscription} delivers from {delivery.topic[:20]}")
        if not delivery.message and topic.compact:
            return  # a tombstone: nothing says which one
        place = f"a delivery of {subscription}"
        entry = self._judge.find(delivery.message)
        if entry is None:
            raise Violation("phantom", f"no client wrote {place}: {delivery.message[:60]!r}")
        sent, number = entry
        item = sent.items[number]
        if item.value != delivery.message:
            raise Violation("changed", f"{place} is not what was sent as {sent}")
        self._check_origin(subscription, sent, number, place)
        quality = min(int(subscription.leased), self.qualities.get(item.identity, 1))
        if delivery.quality != quality:
            raise Violation("quality", f"{place} has quality {delivery.quality}, not {quality}")
        if not quality and delivery.correlation not in polling.polls:
            raise Violation("correlation", f"{place} answers {delivery.correlation}")
        tag = delivery.correlation if quality else 0
        given = subscription.given.get(item.identity)
        if given is None:
            given = subscription.given[item.identity] = Given(sent, number, quality, tag)
            self._check_first(polling, given)
        self._check_again(subscription, given, polling, tag)
        given.times += 1
        given.life, given.since_ms = self._life, polling.since_ms
        if not sent.loose:
            sent.shown = True

    def _check_origin(
        self, subscription: Subscription, sent: Sent, number: int, place: str
    ) -> None:
        transaction = sent.transaction
        known = transaction is not None and not transaction.broken
        if known and transaction.outcome in (Outcome.ABORTED, Outcome.OPEN):
            raise Violation("uncommitted data", f"{place} is record {number} of {sent}")
        if sent.loose:
            return
        if sent.topic is not subscription.topic:
            raise Violation("stray", f"{place} holds record {number} of {sent}")
        if sent.absent:
            raise Violation("returned", f"{place} holds {sent}, which was not there before")
        if sent in subscription.before:
            raise Violation("before its start", f"{place} holds {sent}")

    def _check_first(self, polling: Polling, given: Given) -> None:
        """Records of one partition are delivered in order, at first."""
        subscription = polling.subscription
        sent = given.sent
        if given.quality:
            partition, position = divmod(given.tag, _TAG_PARTITION)
        elif sent.offset is not None and sent.index != UNPLACED:
            partition, position = sent.index, sent.offset + given.number
        else:
            return
        key = (partition, given.quality)
        newest = subscription.newest.get(key, -1)
        if position <= newest and not polling.overlapped:
            raise Violation("out of order", f"{subscription} delivers {given} too late")
        subscription.newest[key] = max(position, newest)

    def _check_again(
        self, subscription: Subscription, given: Given, polling: Polling, tag: int
    ) -> None:
        if not given.quality:
            if given.times:
                raise Violation("delivered twice", f"{subscription} delivers {given} again")
            return
        sent = given.sent
        identity = sent.items[given.number].identity
        if tag != given.tag or subscription.tags.setdefault(tag, identity) != identity:
            raise Violation("tag changed", f"{subscription} gives tag {tag} to {given}")
        if sent.offset is not None and not sent.loose:
            partition, position = divmod(tag, _TAG_PARTITION)
            first = sent.offset + given.number + 1 - position
            known = subscription.firsts.setdefault(partition, first)
            if known != first or partition != sent.index:
                raise Violation("tag changed", f"{subscription} began at {known}: {given}")
        if given.acked in (Acked.CONFIRMED, Acked.DURABLE) and polling.tick > given.acked_tick:
            raise Violation(
                "delivered after its acknowledgement",
                f"{subscription} delivers {given}; its acknowledgement is {given.acked.value}",
            )
        if given.acked is Acked.MAYBE:
            given.acked = Acked.NO

    def acknowledging(self, given: Given) -> None:
        given.tries += 1
        if given.acked is Acked.NO:
            given.acked = Acked.MAYBE

    def acknowledged(self, given: Given) -> None:
        given.acked, given.acked_tick = Acked.CONFIRMED, self.tick()
        given.acked_ms = self._world.clock.elapsed_ms

    def refused(self, subscription: Subscription, given: Given) -> None:
        """The broker says that a delivery is not on lease."""
        if given.tries > 1:
            return
        given.acked = Acked.NO
        held_ms = self._world.clock.elapsed_ms - given.since_ms
        topic = subscription.topic
        held = topic.being is Being.ALIVE and is_lasting(topic) and held_ms < LEASE_MS
        if given.life == self._life and held:
            raise Violation("lease lost", f"{subscription}: {given} is not on lease")

    # What must come

    def due(self, subscription: Subscription) -> list[tuple[Sent, int]]:
        """Records that were never delivered, and must be by polls that begin now."""
        topic = subscription.topic
        if not is_lasting(topic):
            return []
        opened = {index for index in list(topic.models) if is_open(self._world, topic, index)}
        found: list[tuple[Sent, int]] = []
        for index, model in topic.models.items():
            if index in opened or (opened and index == UNPLACED):
                continue
            for sent in model.sents:
                if sent.number > subscription.began and sent.required and is_committed(sent):
                    found += self._undelivered(subscription, sent)
        return found

    def _undelivered(self, subscription: Subscription, sent: Sent) -> list[tuple[Sent, int]]:
        found = []
        for number, item in enumerate(sent.items):
            quality = min(int(subscription.leased), self.qualities.get(item.identity, 1))
            lost = max(self._crash_mark, subscription.dropped_mark)
            passed_over = not quality and sent.number <= lost
            if item.identity not in subscription.given and not passed_over:
                found.append((sent, number))
        return found

    def check_delivered(self, subscription: Subscription, due: list[tuple[Sent, int]]) -> None:
        """Polls found nothing more: everything that was due must have been delivered."""
        for sent, number in due:
            if sent.items[number].identity not in subscription.given and not sent.loose:
                raise Violation(
                    "not delivered", f"{subscription} has not delivered record {number} of {sent}"
                )

    def undelivered_again(self, subscription: Subscription) -> list[Given]:
        """What was not acknowledged and was not delivered in this life, after a complete poll."""
        missing = []
        for given in subscription.given.values():
            if given.life == self._life or not given.quality or given.dead:
                continue
            if given.acked is Acked.MAYBE:
                given.acked, given.acked_tick = Acked.DURABLE, self.tick()
            elif given.acked is Acked.NO and is_lasting(subscription.topic):
                missing.append(given)
        return missing

    # What happens to the broker

    def settled(self) -> None:
        """A time without faults has passed since the last operation."""
        for given in self._all_given():
            if given.acked is Acked.CONFIRMED:
                given.acked = Acked.DURABLE

    def ended(self) -> None:
        """The broker has gone."""
        world = self._world
        if self._judge.lossy:
            self.open.clear()
        for subscription in self.open.values():
            subscription.polled_by.clear()
        if not world.stopped_clean:
            self._crash_mark = self._judge.sent_count
        for given in self._all_given():
            if given.acked is Acked.CONFIRMED:
                old = world.clock.elapsed_ms - given.acked_ms >= _DURABLE_AFTER_MS
                durable = world.stopped_clean or (old and not world.had_fault)
                given.acked = Acked.DURABLE if durable else Acked.MAYBE

    def _all_given(self) -> list[Given]:
        return [given for each in self.open.values() for given in each.given.values()]


def is_lasting(topic: TopicLife) -> bool:
    """Does nothing remove records of this topic?"""
    trimmed = any(model.floor_maybe for model in topic.models.values())
    return not (trimmed or topic.compact or topic.retention or topic.unsure)


def is_committed(sent: Sent) -> bool:
    """Is this certainly shown to consumers that read committed records only?"""
    transaction = sent.transaction
    if transaction is None:
        return True
    return transaction.outcome is Outcome.COMMITTED and not transaction.broken

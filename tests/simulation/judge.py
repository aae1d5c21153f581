"""The model of what clients were told, and the rules that a broker must keep to.

Clients report every attempt before they send it, and every answer.  An attempt without an answer
may have happened or not, but only as a whole.  Readings are checked against the model at once;
a complete reading after a restart also decides what became of the open attempts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tests.simulation import expectations, keeping
from tests.simulation.kafka_wire import Read, identity_of, is_marker
from tests.simulation.register import Register
from tests.simulation.violation import Violation

_MARKER = b"a transaction marker"
_IDENTITY = re.compile(rb"<[0-9]+>\Z")
ANYWHERE = 1 << 60
"""A start that may lie at any offset."""

UNPLACED = -1
"""The partition of a batch whose producer is not told where it was written."""


class Outcome(Enum):
    OPEN = "open"
    UNKNOWN = "unknown"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Being(Enum):
    MAYBE = "maybe"
    ALIVE = "alive"
    DELETING = "deleting"
    DELETED = "deleted"


class Item(NamedTuple):
    identity: bytes
    key: bytes | None
    value: bytes | None


@dataclass(eq=False)
class Transaction:
    """One transaction of one transactional producer."""

    number: int
    outcome: Outcome = Outcome.OPEN
    visible: str = ""
    """A record of it that a read_committed consumer got."""
    hidden: str = ""
    """A record of it that such a consumer did not get."""
    broken: bool = False
    """A power cut may have taken any part of it."""
    offsets: list[tuple[Register, int]] = field(default_factory=list)
    """Offsets that are committed with it, by the number of the attempt."""


@dataclass(eq=False)
class Sent:
    """One batch as a producer sent it."""

    number: int
    topic: TopicLife
    index: int
    items: list[Item]
    acks: int
    sent_ms: float
    transaction: Transaction | None = None
    timestamp_ms: int = -1
    """The newest time of its records; -1 if only the broker knows it."""
    offset: int | None = None
    """Of its first record, once that is known."""
    acked: bool = False
    shown: bool = False
    """A reader got it."""
    at_start: bool = False
    """A complete reading at the start of a life found it: its file has been synced since."""
    absent: bool = False
    """A complete reading did not find it."""
    loose: bool = False
    """The topic was deleted or created meanwhile: this may be in either topic or in none."""
    by_id: bool = False
    """It names its topic by the id: it is in that topic or in none."""

    @property
    def required(self) -> bool:
        return (self.acked or self.shown) and not self.loose

    @property
    def next_offset(self) -> int:
        assert self.offset is not None
        return self.offset + len(self.items)

    def __str__(self) -> str:
        state = "acked" if self.acked else "shown" if self.shown else "unanswered"
        at = "?" if self.offset is None else str(self.offset)
        return (
            f"batch {self.number} ({len(self.items)} records, acks={self.acks}, {state}) "
            f"at offset {at} of {self.topic.label}-{self.index}"
        )


@dataclass(eq=False)
class PartitionModel:
    sents: list[Sent] = field(default_factory=list)
    taken: dict[int, bytes] = field(default_factory=dict)
    """Offsets that readers saw or durable acknowledgements named, and what they hold."""
    floor: int = 0
    """No record before this may ever be served again."""
    floor_maybe: int = 0
    """No record before this need be there."""
    crashed: bool = False
    """A crash may have damaged records here that were never promised to survive it."""


@dataclass(eq=False)
class TopicLife:
    """A topic from its creation to its deletion; the next of the same name is another one."""

    name: str
    number: int
    partitions: int
    being: Being = Being.MAYBE
    topic_id: object = None
    partitions_maybe: int = 0
    compact: bool = False
    tombstones_ms: int = 1 << 60
    retention: bool = False
    retention_ms: int = 0
    """Records are kept for this long; 0 if their time does not matter."""
    unsure: bool = False
    """It may be retained or compacted in a way that is not known."""
    doomed: bool = False
    """Its deletion was begun."""
    sourced: bool = False
    """It holds event streams: it must not be trimmed."""
    codec: int | None = None
    """What it recompresses batches to; Fluvio clients must send them so."""
    limited: bool = False
    """It has the default of max.message.bytes."""
    partitions_first: int = 0
    """When it was created: its event streams stay in these."""
    models: dict[int, PartitionModel] = field(default_factory=dict)
    chains: list[list[Sent]] = field(default_factory=list)
    """Batches that one connection sent in this order."""

    @property
    def label(self) -> str:
        return self.name if len(self.name) < 20 else f"{self.name[:8]}..."

    def model(self, index: int) -> PartitionModel:
        return self.models.setdefault(index, PartitionModel())

    def required_end(self, index: int) -> int:
        """Everything before this must be readable."""
        return max(
            (
                sent.next_offset
                for sent in self.model(index).sents
                if sent.required and sent.offset is not None
            ),
            default=0,
        )


class Judge:
    def __init__(self, *, synced: bool) -> None:
        self.synced = synced
        """False where the page cache is good enough: a power cut may take anything recent."""
        self.lossy = False
        """Such a cut has happened since the last complete reading."""
        self.ever_lossy = False
        """Such a cut has happened."""
        self.topics: dict[str, list[TopicLife]] = {}
        self.created: dict[str, list[TopicLife]] = {}
        """The same with those that a power cut has taken back."""
        self.registers: dict[object, Register] = {}
        self.readings = 0
        self._items: dict[bytes, tuple[Sent, int]] = {}
        self._count = 0

    # What clients do

    def current(self, name: str) -> TopicLife | None:
        lives = self.topics.get(name)
        return lives[-1] if lives else None

    def alive(self) -> list[TopicLife]:
        lives = (lives[-1] for lives in self.topics.values())
        return [life for life in lives if life.being is Being.ALIVE]

    def may_start_behind(self, topic: TopicLife, index: int, offset: int) -> bool:
        """Return whether the log may start above an offset, so that it is out of range."""
        model = topic.model(index)
        if max(model.floor, model.floor_maybe) > offset:
            return True
        # A crash leaves damaged segments of records it may take; retention removes those.
        placed = [sent for sent in model.sents if sent.required and sent.offset is not None]
        if model.crashed and not any(s.offset <= offset < s.next_offset for s in placed):
            return True
        return topic.retention or topic.unsure or self.ever_lossy

    def transactions_in(self, topic: TopicLife, index: int) -> list[Transaction]:
        """Return the transactions that may have records in a partition.

        Records sent while the topic was deleted and recreated may be in either topic.
        """
        lives = self.topics[topic.name]
        sents = [s for life in lives for i in (index, UNPLACED) for s in life.model(i).sents]
        here = [sent.transaction for sent in sents if sent.topic is topic or sent.loose]
        return [transaction for transaction in here if transaction is not None]

    def create_topic(self, name: str, partitions: int, **traits: object) -> TopicLife:
        self._count += 1
        life = TopicLife(name, self._count, partitions, partitions_maybe=partitions)
        life.partitions_first = partitions
        for trait, value in traits.items():
            setattr(life, trait, value)
        self.topics.setdefault(name, []).append(life)
        self.created.setdefault(name, []).append(life)
        return life

    def loosen(self, name: str) -> None:
        """A topic is about to be deleted or created: what is under way may go anywhere."""
        for life in self.topics.get(name, ()):
            for model in life.models.values():
                for sent in model.sents:
                    if not (sent.acked or sent.shown or sent.absent):
                        sent.loose = True

    def send(
        self,
        topic: TopicLife,
        index: int,
        items: list[Item],
        *,
        acks: int,
        now_ms: float,
        transaction: Transaction | None = None,
    ) -> Sent:
        self._count += 1
        sent = Sent(self._count, topic, index, items, acks, now_ms, transaction)
        for number, item in enumerate(items):
            assert item.identity not in self._items
            self._items[item.identity] = (sent, number)
        topic.model(index).sents.append(sent)
        if topic.being is not Being.ALIVE:
            sent.loose = True
        return sent

    def acknowledge(self, sent: Sent, offset: int) -> None:
        """The broker said that a batch is written, and where."""
        if sent.offset is not None and sent.offset != offset:
            raise Violation("offset changed", f"{sent} is now acknowledged at offset {offset}")
        if sent.loose:
            return
        sent.acked, sent.absent = True, False
        sent.offset = offset
        model = sent.topic.model(sent.index)
        if sent.acks == -1:
            for number, item in enumerate(sent.items):
                self._take(sent.topic, sent.index, model, offset + number, item.identity)

    def transaction(self) -> Transaction:
        self._count += 1
        return Transaction(self._count)

    @property
    def sent_count(self) -> int:
        """The number of the newest batch; every later one has a higher number."""
        return self._count

    def find(self, value: bytes) -> tuple[Sent, int] | None:
        """The batch that a value was sent in, and its place; values end with an identity."""
        found = _IDENTITY.search(value)
        return self._items.get(value) or (self._items.get(found[0]) if found else None)

    def register(self, key: object, name: str, initial: int = -1) -> Register:
        found = self.registers.get(key)
        if found is None:
            others = [other for other in self.registers.values() if other.name == name]
            found = self.registers[key] = Register(name, initial)
            if self.ever_lossy:
                found.forget(others)
        return found

    # What happens to the broker

    def power_cut(self) -> None:
        """Forget what the acknowledgements that were given do not promise to survive."""
        self._lose_records()
        if self.synced:
            return
        self.lossy = True
        for register in self.registers.values():
            same = [other for other in self.registers.values() if other.name == register.name]
            register.forget(other for other in same if other is not register)
        for lives in self.topics.values():
            # The settings may be lost, or those of an earlier topic of the same name restored.
            lives[-1].unsure |= any(life.retention or life.compact for life in lives)
            models = [model for life in lives for model in life.models.values()]
            if len(lives) > 1:
                # So may its row, and the records of one topic are in the other then.
                for sent in (sent for model in models for sent in model.sents):
                    sent.loose = True
            for model in models:
                model.floor, model.floor_maybe = 0, ANYWHERE
        self._release_offsets()

    def sync_failed(self) -> None:
        """Forget records that were only written: the kernel drops pages it could not sync."""
        self._lose_records()
        self._release_offsets()

    def _lose_records(self) -> None:
        for sent in self._all_sent():
            if self.synced:
                kept = sent.shown or (sent.acked and sent.acks == -1)
            else:
                kept, sent.absent = sent.at_start and not sent.topic.doomed, False
                if sent.transaction is not None:
                    sent.transaction.broken = True
                if not kept:
                    sent.shown = False
            if not kept:
                self._unsettle(sent)
        self.ever_lossy |= not self.synced

    def _release_offsets(self) -> None:
        """Let records that are lost without a broken promise share their offsets with others."""
        if self.synced:
            return
        for model in self._all_models():
            kept_items = {item.identity for s in model.sents if s.required for item in s.items}
            model.taken = {o: i for o, i in model.taken.items() if i in kept_items}

    def _unsettle(self, sent: Sent) -> None:
        sent.acked, sent.offset = False, None
        for model in sent.topic.models.values():
            model.crashed = True

    def _all_sent(self) -> Iterable[Sent]:
        for model in self._all_models():
            yield from model.sents

    def _all_models(self) -> Iterable[PartitionModel]:
        for lives in self.topics.values():
            for life in lives:
                yield from life.models.values()

    # What readers see

    def _take(
        self, topic: TopicLife, index: int, model: PartitionModel, offset: int, identity: bytes
    ) -> None:
        before = model.taken.setdefault(offset, identity)
        if before != identity:
            raise Violation(
                "offset reused",
                f"offset {offset} of {topic.label}-{index} held {self._name(before)} "
                f"and now holds {self._name(identity)}",
            )

    def _name(self, identity: bytes) -> str:
        entry = self._items.get(identity)
        if entry is None:
            return repr(identity[:40])
        return f"record {entry[1]} of {entry[0]}"

    def observe(
        self,
        topic: TopicLife,
        index: int,
        reads: Sequence[Read],
        *,
        start: int,
        end: int,
        floor: int | None = None,
        whole: bool = True,
    ) -> dict[int, bytes]:
        """Check everything that lies in `start..end`, all of which was read.

        `floor` is the start that had been acknowledged when the reading began.  Not `whole` are
        readings that leave out what was aborted.
        """
        self.readings += 1
        model = topic.model(index)
        floor = model.floor if floor is None else floor
        found: dict[int, bytes] = {}
        last = -1
        for read in reads:
            if read.offset <= last:
                raise Violation("out of order", f"offset {read.offset} follows {last}")
            last = read.offset
            if is_marker(read):
                self._take(topic, index, model, read.offset, _MARKER)
                continue
            found[read.offset] = self._observe_record(topic, index, model, read, floor)
        if whole and not topic.compact and not topic.unsure:
            self._check_whole(topic, index, model, found, start, end)
        return found

    def _observe_record(
        self, topic: TopicLife, index: int, model: PartitionModel, read: Read, floor: int
    ) -> bytes:
        place = f"offset {read.offset} of {topic.label}-{index}"
        identity = identity_of(read.record)
        entry = self._items.get(identity)
        if entry is None:
            raise Violation("phantom", f"no client wrote what is at {place}: {identity[:60]!r}")
        sent, number = entry
        item = sent.items[number]
        if (item.key, item.value) != (read.record.key, read.record.value):
            raise Violation("changed", f"{place} is not what was sent as {sent}")
        self.find_in(topic, index, sent)
        base = read.offset - number
        if sent.loose:
            return identity
        if sent.offset is not None and sent.offset != base:
            raise Violation("duplicate", f"{place} holds record {number} of {sent}")
        if sent.absent:
            raise Violation("returned", f"{place} holds {sent}, which was not there before")
        if read.offset < floor:
            raise Violation("trim undone", f"{place} was deleted by an acknowledged request")
        self._take(topic, index, model, read.offset, identity)
        sent.offset = base
        sent.shown = True
        return identity

    def find_in(self, topic: TopicLife, index: int, sent: Sent) -> None:
        """A reader got a batch in a partition: it must have been sent there."""
        if sent.index == UNPLACED and sent.topic is topic:
            sent.index = index
            topic.model(UNPLACED).sents.remove(sent)
            topic.model(index).sents.append(sent)
        elsewhere = sent.topic is not topic
        # Where nothing is synced, a cut may bring an older topic back around newer records.
        loose = sent.loose and (not (sent.by_id and elsewhere) or self.ever_lossy)
        if (elsewhere or sent.index != index) and not loose:
            raise Violation("stray", f"{topic.label}-{index} holds {sent}")

    def _check_whole(
        self,
        topic: TopicLife,
        index: int,
        model: PartitionModel,
        found: dict[int, bytes],
        start: int,
        end: int,
    ) -> None:
        for sent in model.sents:
            offset = sent.offset
            if offset is None or not sent.required:
                continue
            for number in range(len(sent.items)):
                at = offset + number
                if start <= at < end and at not in found:
                    raise Violation("lost", f"record {number} of {sent} is missing")

    def observe_committed(
        self, topic: TopicLife, index: int, reads: Sequence[Read], *, start: int, end: int
    ) -> None:
        """Check what a read_committed consumer got for `start..end`."""
        visible = {read.offset: identity_of(read.record) for read in reads if not is_marker(read)}
        for sent in topic.model(index).sents:
            transaction, offset = sent.transaction, sent.offset
            if offset is None or sent.loose:
                continue
            for number, item in enumerate(sent.items):
                at = offset + number
                if not start <= at < end:
                    continue
                seen = visible.get(at) == item.identity
                if transaction is not None and transaction.broken:
                    continue
                if transaction is not None:
                    self._check_transaction(transaction, sent, number, seen)
                elif not seen and sent.required and not (topic.compact or topic.unsure):
                    raise Violation("lost", f"record {number} of {sent} is hidden from consumers")

    def _check_transaction(
        self, transaction: Transaction, sent: Sent, number: int, seen: bool
    ) -> None:
        name = f"record {number} of {sent} in transaction {transaction.number}"
        if seen:
            transaction.visible = transaction.visible or name
        elif sent.required:
            transaction.hidden = transaction.hidden or name
        if transaction.visible and transaction.hidden:
            raise Violation(
                "torn transaction", f"{transaction.visible} is visible, {transaction.hidden} is not"
            )
        if seen and transaction.outcome in (Outcome.ABORTED, Outcome.OPEN):
            raise Violation("uncommitted data", f"{name} is visible: {transaction.outcome.value}")
        if not seen and sent.required and transaction.outcome is Outcome.COMMITTED:
            raise Violation("lost", f"{name} is hidden, though the commit was acknowledged")

    def check_bounds(self, topic: TopicLife, index: int, start: int, end: int) -> None:
        """Check what ListOffsets says, with nothing under way."""
        model = topic.model(index)
        place = f"{topic.label}-{index}"
        if start > end:
            raise Violation("start beyond end", f"{place} starts at {start} and ends at {end}")
        if start < model.floor:
            raise Violation(
                "trim undone", f"{place} starts at {start}, deleted up to {model.floor}"
            )
        allowed = max(model.floor, model.floor_maybe)
        if not (topic.retention or topic.compact or topic.unsure):
            for sent in model.sents:
                if sent.required and sent.offset is not None and allowed <= sent.offset < start:
                    raise Violation("start moved", f"{place} starts at {start}, behind {sent}")
        if topic.retention_ms:
            keeping.check_age(self.wall_ms, topic, index, allowed, start)
        if model.floor_maybe == ANYWHERE:
            model.floor_maybe = start  # nothing is under way: that is where it is now
        required = topic.required_end(index)
        if end < required and topic.doomed:
            raise Violation("half deleted", f"{place} ends at {end}, {required} was promised")
        if end < required:
            raise Violation("lost end", f"{place} ends at {end}; {required} was promised")

    def finish_reading(
        self, topic: TopicLife, index: int, found: dict[int, bytes], *, restart: bool
    ) -> None:
        """A complete reading with nothing under way: decide what open attempts became."""
        if topic.compact and not topic.unsure:
            placed = {at: self._items[identity] for at, identity in found.items()}
            keeping.check_compacted(self.wall_ms, topic, index, placed)
        expectations.check_chains(topic, index)
        trimmed = any(model.floor_maybe for model in topic.models.values())
        for sent in topic.model(index).sents:
            if sent.loose:
                continue
            there = sent.offset is not None and found.get(sent.offset) == sent.items[0].identity
            if restart and there:
                sent.at_start = True
            lasting = not (topic.compact or topic.retention or topic.unsure)
            if lasting and sent.required and sent.offset is None and not trimmed:
                raise Violation("lost", f"{sent} is nowhere")
            if restart and lasting and not sent.required:
                sent.absent = True

    wall_ms: float = 0.0
    """The latest time that a duration may have been measured up to."""

    # Topics

    def reconcile(self, listed: dict[str, tuple[object, int]]) -> None:
        """Compare the topics with what a broker lists, with nothing under way."""
        for name in sorted(self.topics.keys() | listed.keys()):
            lives = self.topics.setdefault(name, [])
            if name in listed:
                self._reconcile_listed(name, lives, *listed[name])
            elif lives:
                if lives[-1].being is Being.ALIVE and not self.lossy:
                    raise Violation("topic lost", f"{name[:20]} is not listed")
                lives[-1].being = Being.DELETED
        self.lossy = False

    def _reconcile_listed(
        self, name: str, lives: list[TopicLife], topic_id: object, count: int
    ) -> None:
        matches = [life for life in lives if life.topic_id == topic_id]
        if not matches:
            matches = [life for life in lives[-1:] if life.topic_id is None or self.lossy]
        if not matches:
            raise Violation(
                "phantom topic", f"{name[:20]} has id {topic_id}, which was never given"
            )
        life = matches[0]
        if life.being is Being.DELETED and not self.lossy:
            raise Violation("topic returned", f"{name[:20]} with id {topic_id} was deleted")
        while lives[-1] is not life:
            later = lives.pop()
            if later.being is Being.ALIVE and not self.lossy:
                raise Violation("topic lost", f"{name[:20]}: the older id {topic_id} is listed")
            for index, model in later.models.items():  # what was sent to it may be in this one
                life.model(index).sents += [s for s in model.sents if s.loose and not s.required]
        if not life.partitions <= count <= life.partitions_maybe and not self.lossy:
            raise Violation(
                "partitions",
                f"{life.label} has {count} partitions; {life.partitions} were confirmed, "
                f"{life.partitions_maybe} asked for",
            )
        life.topic_id, life.being = topic_id, Being.ALIVE
        life.partitions = life.partitions_maybe = count

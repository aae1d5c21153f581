"""Producers that name themselves, known to the leaders of partitions as Kafka's own are.

A name becomes a producer id and its epoch the producer's epoch, so that leaders fence earlier lives
and know repetitions, through whichever gateway they come.  Here is only remembered what came
through this one; of others' writes the leader is asked.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final

from pentalog.broker.principal_limits import FairKeys
from pentalog.broker.sourcing import Sequenced
from pentalog.cluster.bounds import Bounds
from pentalog.cluster.fleet import ASKING, Fleet
from pentalog.cluster.refusals import Trouble, check
from pentalog.cluster.steps import Steps, begin
from pentalog.cluster.topics import ClusterTopics
from pentalog.cluster.writing import Writing
from pentalog.config import Config
from pentalog.model.errors import BrokerError, PartitionNotFound, ProducerFenced, TopicNotFound
from pentalog.model.later import Later
from pentalog.model.types import Appended, Identity, Partition

LIVES_MAX: Final = 100_000
"""Producers in partitions that are remembered."""

_DESCRIBE_PRODUCERS: Final = 61
_BATCHES_KEPT: Final = 5
_EPOCH_BITS: Final = 15
_EPOCH_MASK: Final = (1 << _EPOCH_BITS) - 1
_SEQUENCES: Final = 1 << 31
_OWN_RANGE: Final = 1 << 62
"""Ids given out by a cluster stay far below."""
_NOT_TOLD: Final = -1


class _Life:
    """One producer id in one partition."""

    __slots__ = ("batches", "epoch", "sent")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.sent = 0
        """Batches that left from here."""
        self.batches: deque[Sequenced] = deque(maxlen=_BATCHES_KEPT)
        """Their offsets are `_NOT_TOLD` while they are on the way, or if others wrote them."""

    def expects(self, sequence: int) -> bool:
        return bool(self.batches) and (self.batches[-1].sequence_last + 1) % _SEQUENCES == sequence

    def holds(self, sequence: int) -> bool:
        """Is there a batch from this sequence on, of which the offset is known?"""
        return any(
            batch.base_offset != _NOT_TOLD
            and (sequence - batch.sequence_first) % _SEQUENCES
            <= (batch.sequence_last - batch.sequence_first) % _SEQUENCES
            for batch in self.batches
        )


class ClusterNamedProducers:
    """Implements `sourcing.NamedProducers`."""

    def __init__(
        self,
        fleet: Fleet,
        topics: ClusterTopics,
        bounds: Bounds,
        writing: Writing,
        config: Config,
    ) -> None:
        self._fleet = fleet
        self._topics = topics
        self._bounds = bounds
        self._writing = writing
        self._lives: OrderedDict[tuple[Partition, int], _Life] = OrderedDict()
        self._epochs: dict[bytes, int] = {}
        self._owners: dict[bytes, str] = {}
        """Principals that used a name first, at this gateway."""
        self._names: FairKeys[bytes] = FairKeys(
            LIVES_MAX, share_percent=config.principal_share_percent
        )
        topics.gone.append(self._forget)

    def epoch(self, name: bytes) -> int | None:
        return self._epochs.get(name)

    def who(self, name: bytes, epoch: int) -> Identity:
        return _identity(name, epoch)

    def owner(self, name: bytes) -> str:
        return self._owners.get(name, "")

    def enter(self, name: bytes, epoch: int, owner: str = "", charged: str = "") -> Later[None]:
        known = self._epochs.get(name)
        if known is not None and epoch < known:
            raise ProducerFenced(f"epoch {epoch} of producer {name!r} is fenced by epoch {known}")
        if owner:
            self._owners.setdefault(name, owner)
        self._note_epoch(name, epoch, charged)
        return Later.now(None)

    def written(self, at: Partition, who: Identity) -> Sequence[Sequenced]:
        life = self._lives.get((at, who.producer_id))
        return () if life is None or life.epoch != who.epoch else tuple(life.batches)

    def sent(
        self, at: Partition, who: Identity, first: int, last: int, settled: Later[Appended]
    ) -> None:
        """A batch of a producer that is none of this engine's own is on its way."""
        life = self._lives.get((at, who.producer_id))
        if life is None or life.epoch != who.epoch:
            life = self._remember((at, who.producer_id), _Life(who.epoch))
        life.sent += 1
        batch = Sequenced(first, last, _NOT_TOLD)
        if not any(known[:2] == batch[:2] for known in life.batches):
            life.batches.append(batch)
        settled.then(partial(self._settled, (at, who.producer_id), life, batch))

    def _settled(
        self, key: tuple[Partition, int], life: _Life, batch: Sequenced, settled: Later[Appended]
    ) -> None:
        try:
            base = settled.value.base_offset
        except BrokerError:
            # What the leader has of it now, only the leader knows.
            if self._lives.get(key) is life:
                del self._lives[key]
            return
        for number, known in enumerate(life.batches):
            if known[:2] == batch[:2]:
                life.batches[number] = batch._replace(base_offset=base)

    def _forget(self, topic: str) -> None:
        for key in [key for key in self._lives if key[0].topic == topic]:
            del self._lives[key]

    # Asking the leader

    def look_up(self, at: Partition, name: bytes, epoch: int, sequence: int) -> Later[None]:
        who = _identity(name, epoch)
        life = self._lives.get((at, who.producer_id))
        if life is not None and life.epoch == who.epoch and life.expects(sequence):
            return Later.now(None)
        return begin(self._look_up(at, name, epoch, sequence))

    def _look_up(self, at: Partition, name: bytes, epoch: int, sequence: int) -> Steps[None]:
        yield self._writing.drained(at)
        who = _identity(name, epoch)
        life = self._lives.get((at, who.producer_id))
        if life is not None and life.epoch == who.epoch and life.holds(sequence):
            return
        yield from self._fleet.persist(lambda: self._ask(at, name, epoch))
        # Where the end is, for what was written too long ago to be found.
        yield from self._fleet.persist(lambda: self._bounds.refresh([at]))

    def describe(self, at: Partition, who: Identity) -> Steps[None]:
        """Learn the last sequence of one producer; whatever epoch it has."""
        doing = f"asking for a producer's writes to {at}"
        try:
            leader = self._topics.leader(at)
        except (TopicNotFound, PartitionNotFound):
            return
        key = (at, who.producer_id)
        sent = self._sent(key)
        topics = [{"name": at.topic, "partition_indexes": (at.index,)}]
        try:
            link = self._fleet.required(self._fleet.node(leader, ASKING), doing)
            answer = yield link.ask(_DESCRIBE_PRODUCERS, {"topics": topics})
            (part,) = answer.topics[0].partitions
            check(doing, part.error_code, part.error_message)
        except Trouble:
            yield from self._topics.refresh(at.topic)
            raise
        if self._sent(key) != sent:
            return  # since it was asked, more has left from here
        for producer in part.active_producers:
            if producer.producer_id == who.producer_id:
                self._learn(key, producer.producer_epoch, producer.last_sequence)
                return
        self._lives.pop(key, None)

    def _sent(self, key: tuple[Partition, int]) -> int:
        life = self._lives.get(key)
        return -1 if life is None else life.sent

    def _learn(self, key: tuple[Partition, int], epoch: int, last: int) -> None:
        life = self._lives.get(key)
        known = life.batches[-1].sequence_last if life is not None and life.batches else -1
        if life is not None and life.epoch == epoch and known == last:
            return
        life = self._remember(key, _Life(epoch))
        if last >= 0:
            life.batches.append(Sequenced(last, last, _NOT_TOLD))

    def _ask(self, at: Partition, name: bytes, epoch: int) -> Steps[None]:
        who = _identity(name, epoch)
        yield from self.describe(at, who)
        life = self._lives.get((at, who.producer_id))
        if life is not None and life.epoch > who.epoch:
            self._note_epoch(name, (epoch & ~_EPOCH_MASK) | life.epoch)

    def _remember(self, key: tuple[Partition, int], life: _Life) -> _Life:
        self._lives[key] = life
        self._lives.move_to_end(key)
        if len(self._lives) > LIVES_MAX:
            self._lives.popitem(last=False)
        return life

    def _note_epoch(self, name: bytes, epoch: int, charged: str = "") -> None:
        known = self._epochs.get(name)
        if known is not None and epoch <= known:
            self._names.touch(name)
            return
        self._epochs[name] = epoch
        charged = self._owners.get(name, charged)
        self._names.use(name, charged)
        forgotten = self._names.excess(charged)
        if forgotten is not None:
            self._names.discard(forgotten)
            del self._epochs[forgotten]
            self._owners.pop(forgotten, None)


@lru_cache(maxsize=4096)
def _identity(name: bytes, epoch: int) -> Identity:
    """Epochs of producers are 15 bits wide: those of names beyond that begin another id."""
    digest = hashlib.sha256(b"%d:%b" % (epoch >> _EPOCH_BITS, name)).digest()
    return Identity(_OWN_RANGE | int.from_bytes(digest[:8], "big") >> 2, epoch & _EPOCH_MASK)

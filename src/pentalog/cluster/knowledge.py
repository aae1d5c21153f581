"""The port's `Knowledge` of an engine that has to ask: what doors want to know is asked for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from pentalog.cluster.agreement import STATE_TOPIC
from pentalog.cluster.bounds import Bounds
from pentalog.cluster.fleet import Fleet
from pentalog.cluster.log import ClusterLog
from pentalog.cluster.named_producers import ClusterNamedProducers
from pentalog.cluster.offsets import ClusterOffsets
from pentalog.cluster.rosters import ClusterRosters
from pentalog.cluster.rounds import Rounds
from pentalog.cluster.state_topic import ClusterState
from pentalog.cluster.steps import Steps, all_of, begin
from pentalog.cluster.topics import ClusterTopics
from pentalog.cluster.transactions import ClusterTransactions
from pentalog.cluster.writing import Writing
from pentalog.model.errors import BatchCorrupt, OffsetOutOfRange, PartitionNotFound, TopicNotFound
from pentalog.model.later import Later
from pentalog.model.types import Edge, Offset, Partition

_OWNER_TRIES: Final = 100
_OWNER_PAUSE_MS: Final = 100
_STATE_TRIES: Final = 1_000
_STATE_PAUSE_MS: Final = 10


class ClusterKnowledge:
    current = False

    def __init__(
        self,
        fleet: Fleet,
        topics: ClusterTopics,
        bounds: Bounds,
        writing: Writing,
        offsets: ClusterOffsets,
        log: ClusterLog,
        producers: ClusterNamedProducers,
        rosters: ClusterRosters,
        transactions: ClusterTransactions,
    ) -> None:
        self._fleet = fleet
        self._topics = topics
        self._bounds = bounds
        self._writing = writing
        self._offsets = offsets
        self._log = log
        self._producers = producers
        self._rosters = rosters
        self._transactions = transactions
        self.kept: ClusterState | None = None
        self._listing = Rounds(lambda: fleet.persist(topics.refresh))

    def topics(self, *, settings: bool = False) -> Later[None]:
        return begin(self._describe_all()) if settings else self._listing.ask()

    def topic(self, name: str, partition: int = 0) -> Later[None]:
        if self._topics.described(name, partition):
            return Later.now(None)
        return begin(self._describe(name, partition))

    def partitions(self, topic: str, indexes: Collection[int] | None = None) -> Later[None]:
        return begin(self._look(topic, indexes))

    def sizes(self, topics: Collection[str]) -> Later[None]:
        return begin(self._log.sizes.refresh(topics))

    def records(
        self, at: Partition, offset: Offset, *, bytes_max: int, lately: bool = False
    ) -> Later[None]:
        if (
            lately
            and self._topics.described(at.topic, at.index)
            and self._log.holds(at, offset, bytes_max=bytes_max)
        ):
            return Later.now(None)
        return begin(self._fetch(at, offset, bytes_max))

    def located(self, at: Partition, when: Edge | int) -> Later[None]:
        return begin(self._locate(at, when))

    def offsets(self, group: str, at: Collection[Partition] | None = None) -> Later[None]:
        return begin(self._offsets.refresh(group, at))

    def groups(self) -> Later[None]:
        listed = begin(self._fleet.persist(self._offsets.refresh_groups))
        return all_of([listed, self._rosters.learn_all()])

    def joining(self, group: str, topic: str, name: str) -> Later[None]:
        return self._rosters.let_in(group, topic, name)

    def roster(self, group: str) -> Later[None]:
        return self._rosters.describe(group)

    def transaction(self, name: str, epoch: int | None = None) -> Later[None]:
        return self._transactions.look_up(name, epoch)

    def enlisting(self, name: str, at: Partition) -> Later[None]:
        return self._transactions.prepare(name, at)

    def transacted(self, name: str, at: Partition) -> Later[None]:
        return self._transactions.learn_writes(name, at)

    def producer(self, at: Partition, name: bytes, epoch: int, sequence: int) -> Later[None]:
        return self._producers.look_up(at, name, epoch, sequence)

    def owner(self) -> Later[None]:
        return Later.now(None) if self.kept is None else begin(self._find_owner(self.kept))

    def state(self) -> Later[None]:
        return Later.now(None) if self.kept is None else begin(self._catch_up(self.kept))

    def _catch_up(self, state: ClusterState) -> Steps[None]:
        at = Partition(STATE_TOPIC, 0)
        yield self.topic(at.topic)
        yield from self._fleet.persist(lambda: self._bounds.refresh([at]))
        end = self._bounds.marks(at).stable
        for _ in range(_STATE_TRIES):
            if state.owned or state.rows.told >= end:
                return
            yield self._fleet.sleep(_STATE_PAUSE_MS)

    def _find_owner(self, state: ClusterState) -> Steps[None]:
        for _ in range(_OWNER_TRIES):
            owner = state.council.owner
            if owner is not None and (state.owned or owner != state.council.me):
                return
            yield self._fleet.sleep(_OWNER_PAUSE_MS)
        state.refuse()

    def _describe(self, name: str, partition: int) -> Steps[None]:
        if not self._topics.known(name):
            # All of them: whoever asks for one that is not there is told which there are.
            yield self._listing.ask()
        if self._topics.known(name):
            yield from self._fleet.persist(lambda: self._topics.describe(name, partition))

    def _describe_all(self) -> Steps[None]:
        yield self._listing.ask()
        yield from self._fleet.persist(self._topics.describe_all)

    def _look(self, topic: str, indexes: Collection[int] | None) -> Steps[None]:
        yield self.topic(topic, max(indexes or (), default=0))
        try:
            count = self._topics.get(topic).partitions
        except TopicNotFound:
            return
        wanted = range(count) if indexes is None else [each for each in indexes if each < count]
        at = [Partition(topic, index) for index in wanted]
        yield all_of([self._writing.drained(each) for each in at])
        yield from self._fleet.persist(lambda: self._bounds.refresh(at))

    def _locate(self, at: Partition, when: Edge | int) -> Steps[None]:
        yield self.topic(at.topic, at.index)
        yield self._writing.drained(at)
        yield from self._fleet.persist(lambda: self._bounds.locate(at, when))

    def _fetch(self, at: Partition, offset: Offset, bytes_max: int) -> Steps[None]:
        yield self.topic(at.topic, at.index)
        yield self._writing.drained(at)
        try:
            yield self._log.fetch_ahead(at, offset, bytes_max=bytes_max)
        except (TopicNotFound, PartitionNotFound, OffsetOutOfRange, BatchCorrupt):
            return  # whoever reads is told

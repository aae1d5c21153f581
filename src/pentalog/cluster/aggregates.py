"""Events by key in a cluster: the owner of the gateways' state numbers them.

It writes them under the epoch of a transactional id that it has taken over.  Before its first event
in a partition it has that epoch noted there, by the end of a transaction that holds nothing: from
then on the partition's leader refuses what an earlier owner may still send, however late it comes.
Only then it looks which events there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from pentalog.broker.aggregates import AggregateIndex
from pentalog.broker.port import Opened, Topic
from pentalog.broker.sourcing import Conflict, Extent, Snapshot
from pentalog.cluster import produce
from pentalog.cluster.bounds import Bounds
from pentalog.cluster.fleet import Fleet
from pentalog.cluster.log import ClusterLog
from pentalog.cluster.refusals import Refused
from pentalog.cluster.state_topic import ClusterState, Tenure
from pentalog.cluster.steps import Steps, all_of, begin
from pentalog.cluster.topics import ClusterTopics
from pentalog.cluster.transactions import ClusterTransactions
from pentalog.config import Config
from pentalog.kernels import Facts
from pentalog.model.errors import BrokerError, Overloaded
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.later import Later
from pentalog.model.settings import LogSettings
from pentalog.model.types import Ack, Appended, Horizon, Identity, Marks, Offset, Partition
from pentalog.runtime import Runtime

TRANSACTIONAL_ID: Final = "pentalog-events"
QUEUED_MAX: Final = 10_000
"""Events that wait to be written, of all partitions."""

_TIMEOUT_MS: Final = 60_000
_TOGETHER_MAX: Final = 500
_IDENTITY_MS: Final = 24 * 3_600_000
"""A cluster forgets a transactional id that is not used, by default after a week."""


@dataclass(frozen=True, slots=True, eq=False)
class _Event:
    at: Partition
    key: bytes
    version: int
    batch: bytearray
    later: Later[Appended | Conflict]


class StableLog:
    """The log as far as transactions have ended: what an index over it may be made of."""

    def __init__(self, log: ClusterLog) -> None:
        self._log = log

    def marks(self, at: Partition) -> Marks:
        marks = self._log.marks(at)
        return marks._replace(durable=marks.stable, end=marks.stable)

    def open(
        self, at: Partition, offset: Offset, *, bytes_max: int, horizon: Horizon
    ) -> Later[Opened]:
        return self._log.open(at, offset, bytes_max=bytes_max, horizon=Horizon.STABLE)


class ClusterAggregates:
    """Implements `sourcing.Aggregates`, and is a `Tenant` of the state."""

    def __init__(
        self,
        fleet: Fleet,
        topics: ClusterTopics,
        bounds: Bounds,
        log: ClusterLog,
        state: ClusterState,
        transactions: ClusterTransactions,
        runtime: Runtime,
        config: Config,
    ) -> None:
        self._fleet = fleet
        self._topics = topics
        self._bounds = bounds
        self._log = log
        self._state = state
        self._transactions = transactions
        self._runtime = runtime
        self._config = config
        self._who: Identity | None = None
        self._identified_s = 0.0
        self._sequences: dict[Partition, int] = {}
        """Of the next event under this identity."""
        self._fenced: dict[Partition, UUID] = {}
        """Where no earlier owner can write any more, and in which topic."""
        self._older: frozenset[UUID] = frozenset()
        """Topics that were there before this gateway owned the state."""
        self._local: AggregateIndex | None = None
        self._tenure: Tenure | None = None
        self._queue: deque[_Event] = deque()
        self._writing = False
        state.tenants.append(self)
        topics.deleted.append(self._topic_deleted)

    # What doors ask

    def extent(self, at: Partition, key: bytes) -> Later[Extent]:
        return begin(self._extent(at, key))

    def append(
        self,
        at: Partition,
        key: bytes,
        version: int,
        batch: memoryview,
        facts: Facts,
        *,
        owner: str = "",
        opened: LogSettings | None = None,
    ) -> Later[Appended | Conflict]:
        # The index reads events from the cluster, where other gateways write them too: aggregates
        # count for the total only.
        self._owner()
        if len(self._queue) >= QUEUED_MAX:
            raise Overloaded(f"{QUEUED_MAX} events wait to be written: try again in a moment")
        event = _Event(at, key, version, bytearray(batch), Later())
        self._queue.append(event)
        if not self._writing:
            self._writing = True
            begin(self._write_all()).then(self._wrote)
        return event.later

    def save_snapshot(self, topic: str, key: bytes, snapshot: Snapshot) -> Later[None]:
        return self._owner().save_snapshot(topic, key, snapshot)

    def snapshot(self, topic: str, key: bytes) -> Later[Snapshot | None]:
        return self._owner().snapshot(topic, key)

    def check(self) -> None:
        self._owner().check()

    # Owning

    def move_in(self, tenure: Tenure) -> Steps[None]:
        yield from self._identify()
        yield from self._fleet.persist(self._topics.refresh)
        if tenure.over:
            return
        self._older = frozenset(topic.topic_id for topic in self._topics.all(internal=True))
        self._fenced.clear()
        local = AggregateIndex(StableLog(self._log), tenure, self._runtime, self._config)
        local.open()
        self._local, self._tenure = local, tenure

    def move_out(self) -> None:
        self._local = self._tenure = None
        queue, self._queue = self._queue, deque()
        for event in queue:
            event.later.refuse(self._state.refusal())

    def _owner(self) -> AggregateIndex:
        if self._local is None or not self._state.owned:
            self._state.refuse()
        return self._local

    def _topic_deleted(self, topic: Topic) -> Later[None]:
        if self._local is None or self._tenure is None:
            return Later.now(None)
        self._local.topic_deleted(topic)
        return self._tenure.settle()

    def _extent(self, at: Partition, key: bytes) -> Steps[Extent]:
        self._owner()
        yield from self._fleet.persist(lambda: self._settled([at]))
        found: Extent = yield self._owner().extent(at, key)
        return found

    def _settled(self, places: Collection[Partition]) -> Steps[None]:
        """Know the ends of partitions, behind which no transaction may hide an event."""
        yield from self._bounds.refresh(places)
        for at in places:
            marks = self._bounds.marks(at)
            if marks.stable < marks.durable:
                raise Refused(
                    f"waiting for an open transaction in {at}", ErrorCode.concurrent_transactions
                )

    # Writing

    def _wrote(self, outcome: Later[None]) -> None:
        self._writing = False
        _ = outcome.value

    def _write_all(self) -> Steps[None]:
        while self._queue:
            together: list[_Event] = []
            while self._queue and len(together) < _TOGETHER_MAX:
                together.append(self._queue.popleft())
            try:
                yield from self._write(together)
            except BrokerError as refusal:
                for event in together:
                    if not event.later.ready:
                        event.later.refuse(refusal)
                yield from self._identify_again()

    def _identify_again(self) -> Steps[None]:
        """What failed may still be on its way: it must be fenced before anything is numbered."""
        self._who = None
        self._fenced.clear()
        self._older |= {topic.topic_id for topic in self._topics.all(internal=True)}
        if not self._state.owned:
            return
        try:
            yield from self._identify()
        except BrokerError:
            return  # whoever writes next is told

    def _identify(self) -> Steps[Identity]:
        who: Identity = yield self._transactions.identify(TRANSACTIONAL_ID, timeout_ms=_TIMEOUT_MS)
        self._who = who
        self._identified_s = self._runtime.monotonic()
        self._sequences.clear()
        return who

    def _identity(self) -> Steps[Identity]:
        aged_s = self._runtime.monotonic() - self._identified_s
        if self._who is None or aged_s * 1000 >= _IDENTITY_MS:
            return (yield from self._identify())
        return self._who

    def _fence(self, who: Identity, at: Collection[Partition]) -> Steps[None]:
        """Shut out earlier owners; topics of this one's own time never had any."""
        ids = {where: self._topics.get(where.topic).topic_id for where in at}
        wanted = [
            where
            for where, topic_id in ids.items()
            if topic_id in self._older and self._fenced.get(where) != topic_id
        ]
        for where in wanted:
            yield self._transactions.prepare(TRANSACTIONAL_ID, where)
        if wanted:
            yield self._transactions.end(TRANSACTIONAL_ID, who, commit=False, bump=False)
            self._fenced.update((where, ids[where]) for where in wanted)

    def _write(self, events: list[_Event]) -> Steps[None]:
        """Each partition's one after the other: none may be there without those before it."""
        lines: dict[Partition, list[_Event]] = {}
        for event in events:
            lines.setdefault(event.at, []).append(event)
        who = yield from self._identity()
        yield from self._fence(who, lines)
        yield from self._fleet.persist(lambda: self._settled(lines))
        yield all_of([begin(self._write_line(line, who)) for line in lines.values()])

    def _write_line(self, events: list[_Event], who: Identity) -> Steps[None]:
        """Those that are the next ones of their aggregates."""
        versions: dict[bytes, int] = {}
        for event in events:
            if event.key not in versions:
                known: Extent = yield self._owner().extent(event.at, event.key)
                versions[event.key] = known.version
            if event.version != versions[event.key] + 1:
                event.later.fill(Conflict(versions[event.key]))
                continue
            try:
                sent = self._send(event, who)
            except BrokerError as refusal:
                event.later.refuse(refusal)  # it has not left
                continue
            appended: Appended = yield sent
            versions[event.key] = event.version
            event.later.fill(appended)

    def _send(self, event: _Event, who: Identity) -> Later[Appended]:
        self._owner()
        if who != self._who:
            self._state.refuse()  # begun in an earlier term, of this gateway's own
        following = produce.stamp(event.batch, who, self._sequences.get(event.at, 0))
        appended = self._log.append(event.at, memoryview(event.batch))
        self._sequences[event.at] = following
        return self._log.settle(appended, Ack.DURABLE)

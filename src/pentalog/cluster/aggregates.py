"""Events by key in a cluster: the owner of the gateways' state numbers them.

It writes them in transactions of one transactional id.  A new owner takes that id over first, which
ends what the former one left open: an event is never seen that was numbered by one who was owner no
more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from pentalog.broker.aggregates import AggregateIndex
from pentalog.broker.port import Opened, Topic
from pentalog.broker.sourcing import Conflict, Extent, Snapshot
from pentalog.cluster import produce
from pentalog.cluster.bounds import Bounds
from pentalog.cluster.fleet import Fleet
from pentalog.cluster.log import ClusterLog
from pentalog.cluster.named_producers import ClusterNamedProducers
from pentalog.cluster.refusals import Refused
from pentalog.cluster.state_topic import ClusterState, Tenure
from pentalog.cluster.steps import Steps, all_of, begin
from pentalog.cluster.topics import ClusterTopics
from pentalog.cluster.transactions import ClusterTransactions
from pentalog.kernels import Facts
from pentalog.model.batch import TRANSACTIONAL
from pentalog.model.errors import BrokerError, Overloaded
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.later import Later
from pentalog.model.types import Ack, Appended, Horizon, Identity, Marks, Offset, Partition
from pentalog.runtime import Runtime

TRANSACTIONAL_ID: Final = "pentalog-events"
QUEUED_MAX: Final = 10_000
"""Events that wait to be written, of all partitions."""

_TIMEOUT_MS: Final = 60_000
_TOGETHER_MAX: Final = 500
_ATTRIBUTES_AT: Final = 21
_SEQUENCES: Final = 1 << 31


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
        producers: ClusterNamedProducers,
        runtime: Runtime,
    ) -> None:
        self._fleet = fleet
        self._bounds = bounds
        self._log = log
        self._state = state
        self._transactions = transactions
        self._producers = producers
        self._runtime = runtime
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
        self, at: Partition, key: bytes, version: int, batch: memoryview, facts: Facts
    ) -> Later[Appended | Conflict]:
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
        yield self._transactions.identify(TRANSACTIONAL_ID, timeout_ms=_TIMEOUT_MS)
        if tenure.over:
            return
        local = AggregateIndex(StableLog(self._log), tenure, self._runtime)
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
        yield from self._fleet.persist(lambda: self._settled(at))
        found: Extent = yield self._owner().extent(at, key)
        return found

    def _settled(self, at: Partition) -> Steps[None]:
        """Know the end of a partition, behind which no transaction may hide an event."""
        yield from self._bounds.refresh([at])
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
        """Whatever is left open of a transaction that failed ends by this."""
        if not self._state.owned:
            return
        try:
            yield self._transactions.identify(TRANSACTIONAL_ID, timeout_ms=_TIMEOUT_MS)
        except BrokerError:
            return  # whoever writes next is told

    def _write(self, events: list[_Event]) -> Steps[None]:
        """Those that are the next ones of their aggregates, in one transaction."""
        versions: dict[tuple[Partition, bytes], int] = {}
        taken: list[_Event] = []
        for event in events:
            where = (event.at, event.key)
            if where not in versions:
                versions[where] = (yield from self._extent(*where)).version
            if event.version == versions[where] + 1:
                versions[where] += 1
                taken.append(event)
            else:
                event.later.fill(Conflict(versions[where]))
        if not taken:
            return
        who = self._transactions.view(TRANSACTIONAL_ID).who
        sent: dict[_Event, Later[Appended]] = {}
        for event in taken:
            sent[event] = yield from self._send(event, who)
        yield all_of(list(sent.values()))
        self._owner()  # one who is owner no more leaves the end to who is now
        yield self._transactions.end(TRANSACTIONAL_ID, who, commit=True, bump=False)
        for event, appended in sent.items():
            event.later.fill(appended.value)

    def _send(self, event: _Event, who: Identity) -> Steps[Later[Appended]]:
        yield self._transactions.prepare(TRANSACTIONAL_ID, event.at)
        self._transactions.admit(who, event.at, enlists=True)
        written = self._producers.written(event.at, who)
        sequence = (written[-1].sequence_last + 1) % _SEQUENCES if written else 0
        batch = event.batch
        batch[_ATTRIBUTES_AT + 1] |= TRANSACTIONAL
        produce.stamp(batch, who, sequence)
        self._owner()
        return self._log.settle(self._log.append(event.at, memoryview(batch)), Ack.DURABLE)

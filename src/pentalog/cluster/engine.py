"""A whole broker whose records, topics and offsets are an Apache Kafka cluster's."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, cast

from pentalog.broker.port import Broker, Committed, Fence, Groups
from pentalog.broker.sourcing import Sourcing
from pentalog.cluster.aggregates import ClusterAggregates
from pentalog.cluster.bounds import Bounds
from pentalog.cluster.coordination import Coordination
from pentalog.cluster.council import ClusterCouncil
from pentalog.cluster.fleet import Fleet
from pentalog.cluster.knowledge import ClusterKnowledge
from pentalog.cluster.link import Login
from pentalog.cluster.log import ClusterLog
from pentalog.cluster.named_producers import ClusterNamedProducers
from pentalog.cluster.offsets import ClusterOffsets
from pentalog.cluster.refusals import Trouble
from pentalog.cluster.registrations import Registrations
from pentalog.cluster.rosters import ClusterRosters
from pentalog.cluster.security import ClusterQuotas, ClusterRules, ClusterTokens, ClusterUsers
from pentalog.cluster.signpost import ClusterSignpost
from pentalog.cluster.smart_modules import ClusterSmartModules
from pentalog.cluster.state_topic import ClusterState
from pentalog.cluster.steps import Steps, begin, first_of
from pentalog.cluster.subscriptions import ClusterSubscriptions
from pentalog.cluster.topic_options import ClusterTopicOptions
from pentalog.cluster.topics import ClusterTopics
from pentalog.cluster.transactions import ClusterTransactions
from pentalog.cluster.wire import Dialer
from pentalog.cluster.writing import Writing
from pentalog.config import Config
from pentalog.metrics import Metrics
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.model.types import Identity, Partition
from pentalog.runtime import Runtime, Timer

REFRESH_INTERVAL_MS: Final = 2_000
"""Topics that others made are seen after this time, if nothing tells it earlier."""
REFRESH_PARTITION_MS: Final = 2
"""But after so much for each partition, if they are many: their answer is long."""
DESCRIBE_INTERVAL_MS: Final = 30_000
"""What others changed of the settings of topics is seen after this time."""
START_PATIENCE_MS: Final = 10_000
_PROBE_MS: Final = 5_000
_LEAVE_MS: Final = 2_000


class Engine:
    def __init__(
        self,
        dialer: Dialer,
        runtime: Runtime,
        metrics: Metrics,
        servers: Sequence[tuple[str, int]],
        login: Login | None = None,
        config: Config | None = None,
    ) -> None:
        self._runtime = runtime
        self._fleet = Fleet(dialer, runtime, servers, login)
        self._topics = ClusterTopics(self._fleet)
        self._bounds = Bounds(self._fleet, self._topics)
        self._writing = Writing(self._fleet, self._topics, runtime)
        self._offsets = ClusterOffsets(self._fleet, self._topics)
        self.council = ClusterCouncil(self._fleet, runtime)
        self.log = ClusterLog(
            self._fleet, self._topics, self._bounds, self._writing, runtime, metrics
        )
        self.state = ClusterState(self._fleet, self._topics, self.log, self.council, runtime)
        self._subscriptions = ClusterSubscriptions(
            self.state, self.log, self._topics, runtime, metrics, config or Config()
        )
        self.state.tenants.append(self._subscriptions)
        self._producers = ClusterNamedProducers(
            self._fleet, self._topics, self._bounds, self._writing, config or Config()
        )
        self.log.sent = self._producers.sent
        coordination = Coordination(self._fleet)
        registrations = Registrations(
            self._fleet, self._topics, self._bounds, self._writing, self.state, runtime
        )
        self._rosters = ClusterRosters(
            self._fleet, self._topics, coordination, registrations, runtime, config or Config()
        )
        self._transactions = ClusterTransactions(
            self._fleet, coordination, self._writing, self._producers, self._rosters
        )
        self.log.transactional_id = self._transactions.name_of
        self._offsets.members = self._rosters
        self._options = ClusterTopicOptions(self.state, self._topics)
        self._aggregates = ClusterAggregates(
            self._fleet,
            self._topics,
            self._bounds,
            self.log,
            self.state,
            self._transactions,
            runtime,
            config or Config(),
        )
        self._smart_modules = ClusterSmartModules(self.state, runtime, config or Config())
        self._users = ClusterUsers(self.state, runtime, config or Config())
        self._tokens = ClusterTokens(self.state, runtime, config or Config())
        self._users.on_dropped.append(self._tokens.drop_of)
        self._rules = ClusterRules(self.state, config or Config())
        self._quotas = ClusterQuotas(self.state, runtime)
        self._timer: Timer | None = None
        self._probing: Later[str] | None = None
        self._patience: Timer | None = None
        self._closed = False
        self._described_s = runtime.monotonic()

    @property
    def names(self) -> str:
        """The nodes that are asked first."""
        return self._fleet.names

    def open(self) -> Later[Broker]:
        """Ready when the cluster has told what there is; refused if nobody answers."""
        return begin(self._open())

    def _open(self) -> Steps[Broker]:
        patience_ms, self._fleet.patience_ms = self._fleet.patience_ms, START_PATIENCE_MS
        yield from self._fleet.persist(self._topics.refresh)
        yield from self._fleet.persist(self.state.open)
        self._smart_modules.open()
        for facet in (self._users, self._tokens, self._rules, self._quotas, self._options):
            facet.open()
        self._fleet.patience_ms = patience_ms
        self._schedule()
        knowledge = ClusterKnowledge(
            self._fleet,
            self._topics,
            self._bounds,
            self._writing,
            self._offsets,
            self.log,
            self._producers,
            self._rosters,
            self._transactions,
        )
        knowledge.kept = self.state
        self._subscriptions.knowledge = knowledge
        return Broker(
            self._topics.cluster_id,
            self.log,
            self._topics,
            ClusterProducers(self._writing),
            cast("Groups", MemberlessGroups(self._offsets)),
            self._transactions,
            knowledge=knowledge,
            council=self.council,
            signpost=ClusterSignpost(self._fleet),
            subscriptions=self._subscriptions,
            sourcing=Sourcing(self._producers, self._rosters, self._aggregates, self._options),
            smart_modules=self._smart_modules,
            rules=self._rules,
            quotas=self._quotas,
            users=self._users,
            tokens=self._tokens,
        )

    def probe(self) -> Later[str]:
        """What keeps the cluster from answering; empty if it does."""
        if self._probing is None:
            self._probing = Later()
            begin(self._topics.refresh()).then(self._probed)
            self._patience = self._runtime.after(
                _PROBE_MS, lambda: self._probe_said(f"no answer in {_PROBE_MS} ms")
            )
        return self._probing

    def _probed(self, refreshed: Later[None]) -> None:
        try:
            refreshed.check()
        except BrokerError as refusal:
            self._probe_said(str(refusal))
        else:
            self._probe_said("")

    def _probe_said(self, flaw: str) -> None:
        probing, self._probing = self._probing, None
        if probing is not None:
            assert self._patience is not None
            self._patience.cancel()
            probing.fill(flaw and f"the cluster does not answer: {flaw}")

    def leave(self) -> Later[None]:
        """Write what is to be kept, and hand over to another gateway; ready soon in any case."""
        return begin(self._leave())

    def _leave(self) -> Steps[None]:
        self._rosters.close()
        self._subscriptions.finish()
        tenure = self.state.tenure
        if tenure is not None:
            yield first_of([tenure.settle(), self._fleet.sleep(_LEAVE_MS)])
        yield self.council.close()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.state.close()
        self._fleet.close()

    def _schedule(self) -> None:
        if not self._closed:
            long_ms = REFRESH_PARTITION_MS * self._topics.partitions
            delay_ms = min(max(REFRESH_INTERVAL_MS, long_ms), DESCRIBE_INTERVAL_MS)
            self._timer = self._runtime.after(delay_ms, self._refresh)

    def _refresh(self) -> None:
        begin(self._refreshed())

    def _refreshed(self) -> Steps[None]:
        try:
            yield from self._topics.refresh()
            now_s = self._runtime.monotonic()
            if now_s - self._described_s >= DESCRIBE_INTERVAL_MS / 1000:
                self._described_s = now_s
                yield from self._topics.describe_again()
        except Trouble:
            pass  # nobody asked; whoever does is told
        finally:
            self._schedule()


class ClusterProducers:
    """Implements the port's `Producers`."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def identify(self) -> Later[Identity]:
        return begin(self._writing.identify())


class NotOffered:
    """Stands for a facet of the port that this engine does not have.

    Doors that need it are not opened on this engine: to come here is a mistake of ours.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{self._what}.{name} is not offered by this engine")


class MemberlessGroups(NotOffered):
    """Groups that only commit offsets."""

    def __init__(self, offsets: ClusterOffsets) -> None:
        super().__init__("groups")
        self.offsets = offsets
        self._forgotten: Later[None] = Later.now(None)

    def commit(
        self,
        group: str,
        fence: Fence,
        offsets: Mapping[Partition, Committed],
        *,
        epoch_aware: bool = True,
        owner: str = "",
    ) -> Later[None]:
        """For nobody; the coordinator refuses it while the group has members."""
        assert fence == Fence(), "nobody is a member here"
        return self.offsets.commit(group, offsets, owner=owner)

    def forget(self, group: str, at: Collection[Partition]) -> Mapping[Partition, BrokerError]:
        """What the coordinator refuses, `settle` tells."""
        self._forgotten = self.offsets.forget(group, at)
        return {}

    def settle(self) -> Later[None]:
        return self._forgotten

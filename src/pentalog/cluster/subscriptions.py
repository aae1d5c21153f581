"""Subscriptions in front of a cluster: kept by the owner of the state, by the local engine's code.

That code asks a log and topics which know everything at once; here they are told beforehand, or
asked twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from pentalog.broker import settings as topic_settings
from pentalog.broker.deliveries import Subscription, SubscriptionView
from pentalog.broker.knowledge import Knowledge
from pentalog.broker.port import Opened, Topic, TopicSpec
from pentalog.broker.subscriptions import LocalSubscriptions
from pentalog.cluster.log import ClusterLog
from pentalog.cluster.state_topic import ClusterState, Tenure
from pentalog.cluster.steps import Steps, all_of, begin
from pentalog.cluster.topics import ClusterTopics
from pentalog.config import Config
from pentalog.kernels import Facts
from pentalog.metrics import Metrics
from pentalog.model.errors import BrokerError, Overloaded, TopicExists
from pentalog.model.later import Later
from pentalog.model.types import Ack, Appended, Horizon, Offset, Partition
from pentalog.runtime import Runtime

_KEPT_MAX: Final = 128
_KEPT_BYTES_MAX: Final = 64 << 20
_OURS: Final = "subscription."
"""What the names of settings begin with that no Kafka knows."""


class ClusterSubscriptions:
    """Implements the port's `Subscriptions`, and is a `state_topic.Tenant`."""

    def __init__(
        self,
        state: ClusterState,
        log: ClusterLog,
        topics: ClusterTopics,
        runtime: Runtime,
        metrics: Metrics,
        config: Config,
    ) -> None:
        self._state = state
        self._log = log
        self._topics = topics
        self._runtime = runtime
        self._metrics = metrics
        self._config = config
        self.knowledge: Knowledge | None = None
        self._kept: LocalSubscriptions | None = None
        self._watchers: dict[object, Callable[[], None]] = {}
        state.council.watch(self._moved)
        topics.deleted.append(self._topic_deleted)

    @property
    def here(self) -> bool:
        return self._kept is not None and self._state.owned

    def watch(self, run: Callable[[], None]) -> Callable[[], None]:
        key = object()
        self._watchers[key] = run
        return lambda: self._watchers.pop(key, None) and None

    def _moved(self) -> None:
        for run in list(self._watchers.values()):
            run()

    def open(self, topic: str, *, leased: bool, owner: str, charged: str = "") -> Later[int]:
        if self._kept is None or not self.here:
            self._state.refuse()
        return self._kept.open(topic, leased=leased, owner=owner, charged=charged)

    def get(self, subscription_id: int) -> Subscription | None:
        return self._kept.get(subscription_id) if self._kept is not None and self.here else None

    def close(self, subscription_id: int) -> None:
        if self._kept is not None and self.here:
            self._kept.close(subscription_id)

    def all(self) -> Sequence[SubscriptionView]:
        return self._kept.all() if self._kept is not None and self.here else ()

    def finish(self) -> None:
        """Write what has changed: this gateway is about to leave."""
        if self._kept is not None and self.here:
            self._kept.stop()

    def _topic_deleted(self, topic: Topic) -> None:
        if self._kept is not None and self.here:
            self._kept.topic_deleted(topic)

    def move_in(self, tenure: Tenure) -> Steps[None]:
        assert self.knowledge is not None
        yield self.knowledge.topics()
        named = [name for (name,) in tenure.rows("SELECT DISTINCT topic FROM subscriptions")]
        yield all_of([self.knowledge.partitions(name) for name in named])
        if tenure.over:
            return
        kept = LocalSubscriptions(
            tenure,
            RememberingLog(self._log),
            PatientTopics(self._topics, tenure, self._config),
            self._runtime,
            self._metrics,
            self._config,
        )
        kept.restore()
        self._kept = kept
        self._moved()

    def move_out(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.abandon()


class RememberingLog:
    """A log whose `open` is asked again when it is ready, and then has the answer."""

    def __init__(self, log: ClusterLog) -> None:
        self._log = log
        self._kept: OrderedDict[tuple[Partition, Offset], Later[Opened]] = OrderedDict()
        self._bytes = 0
        self.marks = log.marks
        self.ends = log.ends

    def append(
        self,
        at: Partition,
        batches: memoryview,
        facts: Facts | None = None,
        *,
        relayed: bool = False,
    ) -> Appended:
        return self._log.append(at, batches, facts, relayed=relayed)

    def settle(self, appended: Appended, ack: Ack) -> Later[Appended]:
        return self._log.settle(appended, ack)

    def open(
        self, at: Partition, offset: Offset, *, bytes_max: int, horizon: Horizon
    ) -> Later[Opened]:
        kept = self._kept.pop((at, offset), None)
        if kept is not None:
            self._bytes -= _size(kept)
            _ = kept.value  # raises what was refused, as a log does that knows at once
            return kept
        opened = self._log.open(at, offset, bytes_max=bytes_max, horizon=horizon)
        if not opened.ready:
            opened.then(lambda arrived: self._keep(at, offset, arrived))
        return opened

    def _keep(self, at: Partition, offset: Offset, arrived: Later[Opened]) -> None:
        before = self._kept.pop((at, offset), None)
        self._bytes += _size(arrived) - (0 if before is None else _size(before))
        self._kept[at, offset] = arrived
        while len(self._kept) > _KEPT_MAX or (self._bytes > _KEPT_BYTES_MAX and self._kept):
            self._bytes -= _size(self._kept.popitem(last=False)[1])


def _size(opened: Later[Opened]) -> int:
    try:
        return len(opened.value.batches)
    except BrokerError:
        return 0


class PatientTopics:
    """Topics of which a new one is there only some time after it was asked for."""

    def __init__(self, topics: ClusterTopics, tenure: Tenure, config: Config) -> None:
        self._topics = topics
        self._tenure = tenure
        self._making: set[str] = set()
        self._defaults = {
            name: value for name, value in config.topic_defaults.items() if name.startswith(_OURS)
        }

    @property
    def version(self) -> int:
        return self._topics.version

    def get(self, name: str) -> Topic:
        """With those settings that a cluster does not know: from the state, or by default."""
        topic = self._topics.get(name)
        found = self._tenure.rows("SELECT name, value FROM topic_settings WHERE topic = ?", name)
        own = {key: value for key, value in found if key.startswith(_OURS)}
        told = {
            key: value
            for key, value in {**self._defaults, **own}.items()
            if key not in topic.overrides
        }
        if not told:
            return topic
        meant = topic_settings.log_settings({}, told)
        fields = [topic_settings.DEFINITIONS[key].field for key in told]
        changes = {field: getattr(meant, field) for field in fields}
        return replace(topic, settings=replace(topic.settings, **changes))

    def create(self, spec: TopicSpec) -> Topic:
        """Have it made; raises `Overloaded`, since it is there later."""
        if spec.name not in self._making:
            self._making.add(spec.name)
            begin(self._make(spec)).then(lambda _: self._making.discard(spec.name))
        raise Overloaded(f"topic {spec.name!r} is being made: try again in a moment")

    def _make(self, spec: TopicSpec) -> Steps[None]:
        try:
            yield self._topics.prepare(spec)
            self._topics.create(spec)
        except TopicExists:  # made by another gateway, and not heard of here
            yield from self._topics.refresh(spec.name)

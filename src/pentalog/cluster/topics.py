"""Topics as the cluster last described them, with the leaders of their partitions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from pentalog.broker import settings as topic_settings
from pentalog.broker.port import Setting, Topic, TopicSpec
from pentalog.broker.topics import name_flaw
from pentalog.clients.kafka import messages
from pentalog.cluster.agreement import STATE_TOPIC
from pentalog.cluster.changes import Changes, TopicChanges, growth_flaw, wanted_changes
from pentalog.cluster.fleet import NODE_PATIENCE_MS, Fleet
from pentalog.cluster.refusals import Refused, check
from pentalog.cluster.steps import Steps, all_of, begin
from pentalog.model.errors import (
    InvalidConfig,
    InvalidTopic,
    PartitionNotFound,
    TopicExists,
    TopicNotFound,
)
from pentalog.model.kafka_names import NAME_CHARACTERS_MAX, is_carried, is_kafka_name
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.later import Later
from pentalog.model.settings import LogSettings
from pentalog.model.types import Offset, Partition

NO_LEADER: Final = -1

_METADATA: Final = 3
_CREATE_TOPICS: Final = 19
_DESCRIBE_CONFIGS: Final = 32
_TOPIC_RESOURCE: Final = 2
_TOPIC_SOURCE: Final = 1
"""A setting the topic has of its own."""
_DESCRIBED_AT_ONCE: Final = 100
_PREPARED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Known:
    topic: Topic
    leaders: tuple[int, ...]
    internal: bool
    described: bool = False
    """Its settings have been asked for; until then they are Kafka's defaults."""


class ClusterTopics:
    """Implements the port's `Topics`."""

    def __init__(self, fleet: Fleet) -> None:
        self.version = 1
        self.cluster_id = ""
        self._fleet = fleet
        self._known: dict[str, Known] = {}
        self._prepared: dict[str, Topic] = {}
        self._watchers: dict[object, Callable[[], None]] = {}
        self._changes = Changes(fleet)
        self.gone: list[Callable[[str], None]] = []
        """Called with the name of every topic that is not there any more, or another one."""
        self.deleted: list[Callable[[Topic], Later[None] | None]] = []
        """Called with every topic that was deleted through this gateway, and waited for."""
        self._changing = TopicChanges(fleet, self.get, self.refresh, self._describe, self.leader)

    # What is known

    def get(self, name: str) -> Topic:
        if name == STATE_TOPIC:
            # It holds what clients must not see: doors read nothing they have not got here.
            raise TopicNotFound(f"topic {name!r} is the gateways' own: choose another")
        return self._find(name).topic

    def by_id(self, topic_id: UUID) -> Topic:
        for known in self._known.values():
            if known.topic.topic_id == topic_id:
                return known.topic
        raise TopicNotFound(f"the cluster has no topic with the id {topic_id}")

    def all(self, *, internal: bool = False) -> Sequence[Topic]:
        found = [known for known in self._known.values() if internal or not known.internal]
        return sorted((known.topic for known in found), key=lambda topic: topic.name)

    def settings(self, name: str) -> Sequence[Setting]:
        return topic_settings.listing({}, self.get(name).overrides)

    def defaults(self) -> Sequence[Setting]:
        return topic_settings.listing({}, {})

    def leader(self, at: Partition) -> int:
        """The node that leads a partition, `NO_LEADER` if none does at the moment."""
        leaders = self._find(at.topic).leaders
        if not 0 <= at.index < len(leaders):
            raise PartitionNotFound(f"{at}; the topic has 0..{len(leaders) - 1}")
        return leaders[at.index]

    @property
    def partitions(self) -> int:
        """How many there are of all topics."""
        return sum(len(known.leaders) for known in self._known.values())

    def known(self, name: str) -> bool:
        return name in self._known

    def described(self, name: str, partition: int = 0) -> bool:
        known = self._known.get(name)
        return known is not None and known.described and partition < len(known.leaders)

    def check_writable(self, name: str) -> None:
        """Raise unless it is there, and clients may write and change it."""
        if self._find(name).internal:
            raise InvalidTopic(f"topic {name!r} is the cluster's own: clients cannot change it")

    def _find(self, name: str) -> Known:
        known = self._known.get(name)
        if known is None:
            raise TopicNotFound(f"topic {name!r} does not exist in the cluster: create it first")
        return known

    # Asking the cluster

    def refresh(self, name: str | None = None) -> Steps[None]:
        """Ask once for one topic, or for all; a topic that is not there is forgotten."""
        if name is not None and not is_carried(name):
            return  # no topic of Kafka's, and it would hang up
        asked = None if name is None else [{"topic_id": None, "name": name}]
        answer = yield self._fleet.ask_any(
            _METADATA,
            {
                "topics": asked,
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )
        self._fleet.learn({node.node_id: (node.host, node.port) for node in answer.brokers})
        self._fleet.controller = answer.controller_id
        self.cluster_id = answer.cluster_id or ""
        before = self._known
        after = {} if name is None else dict(before)
        for topic in answer.topics:
            if topic.error_code in _GONE or (name is None and not topic.partitions):
                after.pop(topic.name, None)
                continue
            if not topic.partitions:
                check(f"asking for topic {topic.name!r}", topic.error_code)
            after[topic.name] = _known(topic, before.get(topic.name))
        if after != before:
            self._change(after)

    def describe(self, name: str, partition: int = 0) -> Steps[None]:
        """Learn a topic and its settings; nothing if there is no such topic."""
        known = self._known.get(name)
        if known is None or partition >= len(known.leaders):
            yield from self.refresh(name)
        known = self._known.get(name)
        if known is not None and not known.described:
            yield from self._describe([name])

    def describe_all(self) -> Steps[None]:
        """Learn the settings of every topic whose settings have not been asked for."""
        names = [name for name, known in self._known.items() if not known.described]
        for start in range(0, len(names), _DESCRIBED_AT_ONCE):
            yield from self._describe(names[start : start + _DESCRIBED_AT_ONCE])

    def describe_again(self) -> Steps[None]:
        """Learn what others have changed of the settings that matter here."""
        names = [name for name, known in self._known.items() if known.described]
        for start in range(0, len(names), _DESCRIBED_AT_ONCE):
            yield from self._describe(names[start : start + _DESCRIBED_AT_ONCE])

    def _describe(self, names: Sequence[str]) -> Steps[None]:
        resources = [
            {"resource_type": _TOPIC_RESOURCE, "resource_name": name, "configuration_keys": None}
            for name in names
        ]
        answer = yield self._fleet.ask_any(
            _DESCRIBE_CONFIGS,
            {
                "resources": resources,
                "include_synonyms": False,
                "include_documentation": False,
            },
        )
        after = dict(self._known)
        for result in answer.results:
            known = after.get(result.resource_name)
            if known is None or result.error_code in _GONE:
                continue
            doing = f"asking for the settings of {result.resource_name!r}"
            check(doing, result.error_code, result.error_message)
            topic = _described(known.topic, result.configs)
            after[topic.name] = _kept(known, replace(known, topic=topic, described=True))
        if after != self._known:
            self._change(after)

    def _change(self, known: dict[str, Known]) -> None:
        before, self._known = self._known, known
        if known is not before:
            for name, was in before.items():
                now = known.get(name)
                if now is None or now.topic.topic_id != was.topic.topic_id:
                    for forget in self.gone:
                        forget(name)
        self.version += 1
        for run in list(self._watchers.values()):
            run()

    # Changing the cluster

    def create(self, spec: TopicSpec, *, dry_run: bool = False) -> Topic:
        if not dry_run:
            made = self._prepared.pop(spec.name, None)
            if made is not None:
                return made
        if spec.name in self._known:
            raise TopicExists(f"topic {spec.name!r} exists already: choose another name")
        if not is_kafka_name(spec.name) or name_flaw(spec.name) is not None:
            raise InvalidTopic(
                f"topic name {spec.name[:30]!r}: a cluster takes 1 to {NAME_CHARACTERS_MAX} ASCII "
                "letters, digits, '.', '_' and '-', and no name of its own topics"
            )
        overrides = topic_settings.tidy(spec.settings)
        assert dry_run, "what the cluster has to make is prepared first"
        return Topic(
            name=spec.name,
            topic_id=UUID(int=0),
            partitions=spec.partitions or 1,
            overrides=overrides,
            settings=topic_settings.log_settings({}, overrides),
        )

    def prepare(self, spec: TopicSpec) -> Later[None]:
        self.create(spec, dry_run=True)
        return begin(self._create(spec))

    def _create(self, spec: TopicSpec) -> Steps[None]:
        tries = 0

        def once() -> Steps[None]:
            nonlocal tries
            tries += 1
            try:
                yield from self._ask_to_create(spec)
            except Refused as refused:
                # An earlier try of ours may have made it, and its answer been lost.
                if refused.code is not ErrorCode.topic_already_exists or tries == 1:
                    raise

        yield from self._fleet.persist(once)
        yield from self._fleet.persist(lambda: self._see_created(spec.name))
        if len(self._prepared) >= _PREPARED_MAX:
            self._prepared.clear()
        self._prepared[spec.name] = self._find(spec.name).topic

    def _ask_to_create(self, spec: TopicSpec) -> Steps[None]:
        configs = [{"name": name, "value": value} for name, value in spec.settings.items()]
        answer = yield self._fleet.ask_controller(
            _CREATE_TOPICS,
            {
                "topics": [
                    {
                        "name": spec.name,
                        "num_partitions": -1 if spec.partitions is None else spec.partitions,
                        "replication_factor": -1,
                        "assignments": [],
                        "configs": configs,
                    }
                ],
                "timeout": messages.ms(NODE_PATIENCE_MS),
                "validate_only": False,
            },
        )
        (result,) = answer.topics
        text = getattr(result, "error_message", None)
        check(f"creating topic {spec.name!r}", result.error_code, text)

    def _see_created(self, name: str) -> Steps[None]:
        """Nodes hear of a new topic one after the other."""
        yield from self.refresh(name)
        known = self._known.get(name)
        if known is None or NO_LEADER in known.leaders:
            raise Refused(f"waiting for topic {name!r}", ErrorCode.leader_not_available)
        yield from self.describe(name)

    def settle(self) -> Later[None]:
        """Ready when the cluster has done what was asked for in this turn, or refused."""
        return self._changes.settle()

    def watch(self, run: Callable[[], None]) -> Callable[[], None]:
        key = object()
        self._watchers[key] = run
        return lambda: self._watchers.pop(key, None) and None

    def delete(self, name: str) -> None:
        self.check_writable(name)
        self._changes.ask(self._delete(self.get(name)))

    def _delete(self, topic: Topic) -> Steps[None]:
        yield from self._changing.delete(topic)
        told = [run(topic) for run in self.deleted]
        yield all_of([later for later in told if later is not None])

    def await_also(self, later: Later[None]) -> None:
        """What else `settle` has to wait for in this turn."""
        self._changes.wait_for(later)

    def touch(self) -> None:
        """Something has changed that belongs to topics, and is not kept here."""
        self._change(self._known)

    def grow(self, name: str, partitions: int, *, dry_run: bool = False) -> None:
        self.check_writable(name)
        topic = self.get(name)
        flaw = growth_flaw(topic, partitions)
        if flaw is not None:
            raise flaw
        if not dry_run:
            self._changes.ask(self._changing.grow(topic, partitions))

    def configure(
        self,
        name: str,
        changes: Mapping[str, str | None],
        *,
        replace: bool = False,
        dry_run: bool = False,
    ) -> None:
        self.check_writable(name)
        topic = self.get(name)
        wanted = wanted_changes(topic, changes, replace=replace)
        if wanted and not dry_run:
            self._changes.ask(self._changing.configure(topic, wanted))

    def trim(self, at: Partition, before: Offset) -> Offset:
        self.leader(at)
        self._changes.ask(self._trim(at, before))
        return before

    def _trim(self, at: Partition, before: Offset) -> Steps[None]:
        yield from self._changing.trim(at, before)
        self.touch()  # what was read ahead may not be there any more


_GONE: Final = (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception)


def _known(topic: Any, before: Known | None) -> Known:
    leaders = [NO_LEADER] * len(topic.partitions)
    for part in topic.partitions:
        if 0 <= part.partition_index < len(leaders):
            leaders[part.partition_index] = part.leader_id
    topic_id = topic.topic_id or UUID(int=0)
    if before is not None and before.topic.topic_id == topic_id:
        resized = replace(before.topic, partitions=len(leaders))
        return _kept(before, replace(before, topic=resized, leaders=tuple(leaders)))
    fresh = Topic(
        name=topic.name,
        topic_id=topic_id,
        partitions=len(leaders),
        overrides={},
        settings=LogSettings(),
    )
    return Known(fresh, tuple(leaders), topic.is_internal or topic.name == STATE_TOPIC)


def _kept(before: Known, after: Known) -> Known:
    """The same objects where nothing has changed: watchers compare by identity."""
    if after == before:
        return before
    return replace(after, topic=before.topic) if after.topic == before.topic else after


def _described(topic: Topic, configs: Sequence[Any]) -> Topic:
    """The same topic with those of the cluster's settings that mean something here."""
    defaults: dict[str, str] = {}
    overrides: dict[str, str] = {}
    for config in configs:
        if config.value is None or config.name not in topic_settings.DEFINITIONS:
            continue
        with contextlib.suppress(InvalidConfig):  # a newer Kafka may know other values
            topic_settings.log_settings({}, {config.name: config.value})
            own = config.config_source == _TOPIC_SOURCE
            (overrides if own else defaults)[config.name] = config.value
    settings = topic_settings.log_settings(defaults, overrides)
    # Whether there are enough copies is for the cluster to say; a gateway keeps none.
    settings = replace(settings, insync_replicas_min=1)
    return replace(topic, overrides=overrides, settings=settings)

"""Changes of topics: the cluster is asked in the turn they are made, `settle` tells its word."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pentalog.broker import settings as topic_settings
from pentalog.broker.port import Topic
from pentalog.clients.kafka import messages
from pentalog.cluster.fleet import ASKING, NODE_PATIENCE_MS, Fleet
from pentalog.cluster.refusals import Lost, Refused, check
from pentalog.cluster.steps import Steps, all_of, begin
from pentalog.model.errors import InvalidPartitions, TopicNotFound
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.later import Later
from pentalog.model.types import Offset, Partition

_DELETE_TOPICS: Final = 20
_DELETE_RECORDS: Final = 21
_CREATE_PARTITIONS: Final = 37
_ALTER_CONFIGS: Final = 44
_TOPIC_RESOURCE: Final = 2
_SET: Final = 0
_DELETE: Final = 1


class Changes:
    """What was asked for, until whoever asked has called `settle`, in the same turn."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._asked: list[Later[Any]] = []

    def ask(self, steps: Steps[Any]) -> None:
        self.wait_for(begin(steps))

    def wait_for(self, later: Later[Any]) -> None:
        if not self._asked:
            # What nobody waits for must not be told to whoever comes next.
            self._fleet.soon(self._asked.clear)
        self._asked.append(later)

    def settle(self) -> Later[None]:
        asked = list(self._asked)
        self._asked.clear()
        return all_of(asked) if asked else Later.now(None)


class TopicChanges:
    """The conversations of one cluster, each of which ends when the change can be seen."""

    def __init__(
        self,
        fleet: Fleet,
        find: Callable[[str], Topic],
        refresh: Callable[[str], Steps[None]],
        describe: Callable[[Sequence[str]], Steps[None]],
        leader: Callable[[Partition], int],
    ) -> None:
        self._fleet = fleet
        self._find = find
        self._refresh = refresh
        self._describe = describe
        self._leader = leader

    def delete(self, topic: Topic) -> Steps[None]:
        name = topic.name
        lost = False

        def once() -> Steps[None]:
            nonlocal lost
            fields = {"topic_names": (name,), "timeout": messages.ms(NODE_PATIENCE_MS)}
            try:
                answer = yield self._fleet.ask_controller(_DELETE_TOPICS, fields)
            except Lost:
                lost = True  # it may have been done
                raise
            (result,) = answer.responses
            if result.error_code is not ErrorCode.unknown_topic_or_partition:
                check(f"deleting topic {name!r}", result.error_code)
            elif not lost:
                yield from self._refresh(name)
                raise TopicNotFound(f"topic {name!r} does not exist in the cluster any more")

        def seen() -> Steps[None]:
            yield from self._refresh(name)
            try:
                found = self._find(name)
            except TopicNotFound:
                return
            if found.topic_id == topic.topic_id:
                raise _not_yet(f"the deletion of topic {name!r}")

        yield from self._fleet.persist(once)
        yield from self._fleet.persist(seen)

    def grow(self, topic: Topic, partitions: int) -> Steps[None]:
        name = topic.name
        wished = {"name": name, "count": partitions, "assignments": None}
        fields = {
            "topics": [wished],
            "timeout": messages.ms(NODE_PATIENCE_MS),
            "validate_only": False,
        }

        def once() -> Steps[None]:
            answer = yield self._fleet.ask_controller(_CREATE_PARTITIONS, fields)
            (result,) = answer.results
            if result.error_code is ErrorCode.invalid_partitions:
                yield from self._refresh(name)
                if self._find(name).partitions >= partitions:
                    return  # by an earlier try of ours, or by others
            check(f"growing topic {name!r}", result.error_code, result.error_message)

        def seen() -> Steps[None]:
            yield from self._refresh(name)
            if self._find(name).partitions < partitions:
                raise _not_yet(f"new partitions of topic {name!r}")
            for index in range(partitions):
                if self._leader(Partition(name, index)) < 0:
                    raise _not_yet(f"a leader of {name}-{index}")

        yield from self._fleet.persist(once)
        yield from self._fleet.persist(seen)

    def configure(self, topic: Topic, changes: Mapping[str, str | None]) -> Steps[None]:
        name = topic.name
        configs = [
            {"name": key, "config_operation": _DELETE if value is None else _SET, "value": value}
            for key, value in changes.items()
        ]
        resource = {"resource_type": _TOPIC_RESOURCE, "resource_name": name, "configs": configs}
        fields = {"resources": [resource], "validate_only": False}

        def once() -> Steps[None]:
            answer = yield self._fleet.ask_controller(_ALTER_CONFIGS, fields)
            (result,) = answer.responses
            check(f"configuring topic {name!r}", result.error_code, result.error_message)

        def seen() -> Steps[None]:
            yield from self._describe([name])
            overrides = self._find(name).overrides
            if any(overrides.get(key) != value for key, value in changes.items()):
                raise _not_yet(f"the settings of topic {name!r}")

        yield from self._fleet.persist(once)
        yield from self._fleet.persist(seen)

    def trim(self, at: Partition, before: Offset) -> Steps[None]:
        partition = {"partition_index": at.index, "offset": before}
        fields = {
            "topics": [{"name": at.topic, "partitions": [partition]}],
            "timeout": messages.ms(NODE_PATIENCE_MS),
        }
        doing = f"trimming {at}"

        def once() -> Steps[None]:
            link = self._fleet.required(self._fleet.node(self._leader(at), ASKING), doing)
            answer = yield link.ask(_DELETE_RECORDS, fields)
            code = answer.topics[0].partitions[0].error_code
            if code:
                yield from self._refresh(at.topic)
            check(doing, code)

        yield from self._fleet.persist(once)


def growth_flaw(topic: Topic, partitions: int) -> InvalidPartitions | None:
    if partitions > topic.partitions:
        return None
    return InvalidPartitions(
        f"topic {topic.name!r} has {topic.partitions} partitions and cannot shrink or stay at "
        f"{partitions}: give {topic.partitions + 1} or more"
    )


def wanted_changes(
    topic: Topic, changes: Mapping[str, str | None], *, replace: bool
) -> dict[str, str | None]:
    """What has to be changed of a topic's own settings; raises `InvalidConfig`."""
    wanted: dict[str, str | None] = dict.fromkeys(topic.overrides) if replace else {}
    for key, value in changes.items():
        topic_settings.definition(key)
        wanted[key] = value
    kept = {key: value for key, value in {**topic.overrides, **wanted}.items() if value is not None}
    tidied = topic_settings.tidy(kept)
    topic_settings.log_settings({}, tidied)
    return {key: tidied.get(key) for key in wanted if tidied.get(key) != topic.overrides.get(key)}


def _not_yet(what: str) -> Refused:
    """Nodes hear of changes one after the other."""
    return Refused(f"waiting for {what}", ErrorCode.leader_not_available)

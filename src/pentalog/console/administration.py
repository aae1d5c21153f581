"""What pages ask of the broker beyond records: topics and groups.

Plain functions over a `Cluster`, so that each runs in the name of the browser that asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pentalog.clients.kafka import EARLIEST, LATEST, Cluster, groups, messages
from pentalog.clients.kafka.connection import checked
from pentalog.clients.kafka.errors import Incompatible
from pentalog.clients.kafka.groups import Member
from pentalog.clients.kafka.offsets import GroupOffset, commit, committed
from pentalog.clients.kafka.resources import DESCRIBE_CONFIGS, TOPIC, settings_of
from pentalog.model.types import Offset, Partition

_DELETE_TOPICS: Final = 20
_DESCRIBE_LOG_DIRS: Final = 35
_CREATE_PARTITIONS: Final = 37
_ALTER_CONFIGS: Final = 44
_SET: Final = 0
_UNSET: Final = 1
_SOURCES: Final = {
    1: "topic",
    2: "broker, changed",
    3: "broker, changed",
    4: "broker",
    5: "default",
}


@dataclass(frozen=True, slots=True)
class TopicLine:
    """One topic in a list."""

    name: str
    partitions: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PartitionLine:
    at: Partition
    start: Offset
    end: Offset
    bytes: int


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    value: str
    source: str
    changed: bool


@dataclass(frozen=True, slots=True)
class Position:
    """How far a group has come in one partition."""

    at: Partition
    committed: Offset
    start: Offset
    end: Offset

    @property
    def lag(self) -> int:
        return max(0, self.end - max(self.committed, self.start))


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    state: str
    members: tuple[Member, ...] = ()
    positions: tuple[Position, ...] = ()

    @property
    def lag(self) -> int:
        return sum(position.lag for position in self.positions)


# Topics


def topics(cluster: Cluster) -> list[TopicLine]:
    found = cluster.all_topics()
    places = [Partition(topic.name, index) for topic in found for index in topic.partitions]
    starts, ends = bounds(cluster, places)
    sizes = partition_bytes(cluster, None)
    return [
        TopicLine(
            topic.name,
            len(topic.partitions),
            sum(
                ends.get(at, 0) - starts.get(at, 0)
                for at in (Partition(topic.name, index) for index in topic.partitions)
            ),
            sum(sizes.get(Partition(topic.name, index), 0) for index in topic.partitions),
        )
        for topic in sorted(found)
    ]


def partitions(cluster: Cluster, topic: str) -> list[PartitionLine]:
    found = cluster.topic(topic)
    places = [Partition(topic, index) for index in sorted(found.partitions)]
    starts, ends = bounds(cluster, places)
    sizes = partition_bytes(cluster, places)
    return [PartitionLine(at, starts[at], ends[at], sizes.get(at, 0)) for at in places]


def bounds(
    cluster: Cluster, places: list[Partition]
) -> tuple[dict[Partition, Offset], dict[Partition, Offset]]:
    """The first offset of each, and the stable end."""
    if not places:
        return {}, {}
    starts = cluster.offsets(dict.fromkeys(places, EARLIEST))
    return starts, cluster.offsets(dict.fromkeys(places, LATEST))


def partition_bytes(cluster: Cluster, places: list[Partition] | None) -> dict[Partition, int]:
    """Bytes on disk; empty where the broker does not tell."""
    topics = None
    if places is not None:
        topics = [{"topic": places[0].topic, "partitions": tuple(at.index for at in places)}]
    try:
        answer = cluster.control().ask(_DESCRIBE_LOG_DIRS, {"topics": topics})
    except Incompatible:
        return {}
    return {
        Partition(topic.name, part.partition_index): part.partition_size
        for one in answer.results
        for topic in one.topics
        for part in topic.partitions
    }


def delete_topic(cluster: Cluster, topic: str) -> None:
    fields = {"topic_names": (topic,), "timeout": messages.ms(cluster.options.timeout_ms)}
    answer = cluster.control().ask(_DELETE_TOPICS, fields)
    check_all(f"deleting topic {topic!r}", answer.responses)


def grow_topic(cluster: Cluster, topic: str, count: int) -> None:
    fields = {
        "topics": [{"name": topic, "count": count, "assignments": None}],
        "timeout": messages.ms(cluster.options.timeout_ms),
        "validate_only": False,
    }
    answer = cluster.control().ask(_CREATE_PARTITIONS, fields)
    check_all(f"giving topic {topic!r} {count} partitions", answer.results)


def settings(cluster: Cluster, topic: str) -> list[Setting]:
    answer = cluster.control().ask(DESCRIBE_CONFIGS, settings_of(topic))
    check_all(f"describing topic {topic!r}", answer.results)
    return [
        Setting(
            one.name,
            one.value or "",
            _SOURCES.get(one.config_source, "?"),
            one.config_source == 1,
        )
        for one in sorted(answer.results[0].configs, key=lambda one: str(one.name))
    ]


def set_setting(cluster: Cluster, topic: str, name: str, value: str | None) -> None:
    """None: back to the default."""
    change = {
        "name": name,
        "config_operation": _UNSET if value is None else _SET,
        "value": value,
    }
    resource = {"resource_type": TOPIC, "resource_name": topic, "configs": [change]}
    answer = cluster.control().ask(
        _ALTER_CONFIGS, {"resources": [resource], "validate_only": False}
    )
    check_all(f"changing {name} of topic {topic!r}", answer.responses)


# Groups


def group(cluster: Cluster, name: str) -> Group:
    """One group with its members and its lag; without members where only offsets are kept."""
    found = groups.described(cluster, name)
    offsets = committed(cluster, name, stable=False)
    there = {topic.name for topic in cluster.topics({at.topic for at in offsets})}
    places = sorted(at for at in offsets if at.topic in there)
    starts, ends = bounds(cluster, places)
    positions = tuple(Position(at, offsets[at].offset, starts[at], ends[at]) for at in places)
    if found is None:
        return Group(name, "Empty", (), positions)
    return Group(name, found.state, tuple(found.members), positions)


def planned_seek(
    cluster: Cluster, found: Group, *, to: str, number: int = 0
) -> dict[Partition, tuple[Offset, Offset]]:
    """(offset now, offset afterwards) of each partition, within what is there.

    `to` is `earliest`, `latest`, `offset`, `shift` or `time`; the last three take `number`.
    """
    places = [position.at for position in found.positions]
    if to == "time" and places:
        at_time = cluster.offsets(dict.fromkeys(places, number))
    planned: dict[Partition, tuple[Offset, Offset]] = {}
    for one in found.positions:
        wanted = {
            "earliest": one.start,
            "latest": one.end,
            "offset": number,
            "shift": one.committed + number,
        }.get(to, -1)
        if to == "time":
            wanted = at_time[one.at] if at_time[one.at] >= 0 else one.end
        planned[one.at] = (one.committed, min(max(wanted, one.start), one.end))
    return planned


def seek(cluster: Cluster, group: str, offsets: Mapping[Partition, Offset]) -> None:
    """Move a group; the broker refuses while it has members."""
    commit(cluster, group, {at: GroupOffset(offset) for at, offset in offsets.items()})


def check_all(doing: str, results: Iterable[Any]) -> None:
    """Raise the first refusal among results."""
    for result in results:
        checked(doing, result.error_code, getattr(result, "error_message", None))

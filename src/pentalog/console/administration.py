"""What pages ask of the broker beyond records: topics, groups, users, rules, quotas.

Plain functions over a `Cluster`, so that each runs in the name of the browser that asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pentalog.clients.kafka import EARLIEST, LATEST, Cluster, groups, messages
from pentalog.clients.kafka.connection import checked
from pentalog.clients.kafka.errors import Incompatible
from pentalog.clients.kafka.groups import Member
from pentalog.clients.kafka.offsets import GroupOffset, commit, committed
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.types import Offset, Partition

_DELETE_TOPICS: Final = 20
_DESCRIBE_ACLS: Final = 29
_DESCRIBE_CONFIGS: Final = 32
_DESCRIBE_LOG_DIRS: Final = 35
_CREATE_PARTITIONS: Final = 37
_ALTER_CONFIGS: Final = 44
_DESCRIBE_QUOTAS: Final = 48
_DESCRIBE_SCRAM: Final = 50
_TOPIC_RESOURCE: Final = 2
_ANY: Final = 1
_SET: Final = 0
_UNSET: Final = 1
_SOURCES: Final = {
    1: "topic",
    2: "broker, changed",
    3: "broker, changed",
    4: "broker",
    5: "default",
}
_RESOURCES: Final = {
    2: "topic",
    3: "group",
    4: "cluster",
    5: "transactional id",
    6: "token",
    7: "user",
}
_PATTERNS: Final = {3: "literal", 4: "prefixed"}
_PERMISSIONS: Final = {2: "deny", 3: "allow"}
_OPERATIONS: Final = {
    2: "all", 3: "read", 4: "write", 5: "create", 6: "delete", 7: "alter", 8: "describe",
    9: "cluster action", 10: "describe configs", 11: "alter configs", 12: "idempotent write",
    13: "create tokens", 14: "describe tokens",
}  # fmt: skip
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


class NotOffered(Exception):
    """The broker does not have this; the text says so for a page."""


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


@dataclass(frozen=True, slots=True)
class Table:
    """Lines for a page that only shows them."""

    columns: tuple[str, ...]
    lines: list[tuple[str, ...]] = field(default_factory=list)


# Topics


def topics(cluster: Cluster) -> list[TopicLine]:
    found = cluster.topics()
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
    _check_all(f"deleting topic {topic!r}", answer.responses)


def grow_topic(cluster: Cluster, topic: str, count: int) -> None:
    fields = {
        "topics": [{"name": topic, "count": count, "assignments": None}],
        "timeout": messages.ms(cluster.options.timeout_ms),
        "validate_only": False,
    }
    answer = cluster.control().ask(_CREATE_PARTITIONS, fields)
    _check_all(f"giving topic {topic!r} {count} partitions", answer.results)


def settings(cluster: Cluster, topic: str) -> list[Setting]:
    resource = {
        "resource_type": _TOPIC_RESOURCE,
        "resource_name": topic,
        "configuration_keys": None,
    }
    fields = {
        "resources": [resource],
        "include_synonyms": False,
        "include_documentation": False,
    }
    answer = cluster.control().ask(_DESCRIBE_CONFIGS, fields)
    _check_all(f"describing topic {topic!r}", answer.results)
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
    resource = {"resource_type": _TOPIC_RESOURCE, "resource_name": topic, "configs": [change]}
    answer = cluster.control().ask(
        _ALTER_CONFIGS, {"resources": [resource], "validate_only": False}
    )
    _check_all(f"changing {name} of topic {topic!r}", answer.responses)


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


# Users, rules, quotas


def users(cluster: Cluster) -> Table:
    answer = _asked(cluster, _DESCRIBE_SCRAM, {"users": None}, "users")
    table = Table(("User", "Logs in by", "Iterations"))
    for one in answer.results:
        for info in one.credential_infos:
            mechanism = _MECHANISMS.get(info.mechanism, str(info.mechanism))
            table.lines.append((one.user, mechanism, str(info.iterations)))
    return table


def rules(cluster: Cluster) -> Table:
    fields = {
        "resource_type_filter": _ANY,
        "resource_name_filter": None,
        "pattern_type_filter": _ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": _ANY,
        "permission_type": _ANY,
    }
    answer = _asked(cluster, _DESCRIBE_ACLS, fields, "rules")
    table = Table(("Principal", "May", "Operation", "On", "Name", "Pattern", "From"))
    for resource in answer.resources:
        kind = _RESOURCES.get(resource.resource_type, str(resource.resource_type))
        pattern = _PATTERNS.get(resource.pattern_type, str(resource.pattern_type))
        table.lines.extend(
            (
                one.principal,
                _PERMISSIONS.get(one.permission_type, str(one.permission_type)),
                _OPERATIONS.get(one.operation, str(one.operation)),
                kind,
                resource.resource_name,
                pattern,
                one.host,
            )
            for one in resource.acls
        )
    return table


def quotas(cluster: Cluster) -> Table:
    answer = _asked(cluster, _DESCRIBE_QUOTAS, {"components": (), "strict": False}, "quotas")
    table = Table(("Whose", "Quota", "Value"))
    for entry in answer.entries or ():
        whose = ", ".join(
            f"{part.entity_type} {part.entity_name or '(any other)'}" for part in entry.entity
        )
        table.lines.extend((whose, one.key, f"{one.value:,.0f}") for one in entry.values)
    return table


def _asked(cluster: Cluster, key: int, fields: Mapping[str, Any], what: str) -> Any:
    try:
        answer = cluster.control().ask(key, fields)
    except Incompatible:
        raise NotOffered(f"This broker does not offer {what}.") from None
    if answer.error_code is ErrorCode.security_disabled:
        raise NotOffered(f"This broker keeps no {what}: its authorization is switched off.")
    checked(f"asking for {what}", answer.error_code, answer.error_message)
    return answer


def _check_all(doing: str, results: Iterable[Any]) -> None:
    for result in results:
        checked(doing, result.error_code, getattr(result, "error_message", None))

"""Consumer groups as an operator sees them: which there are, who is in them, how to remove one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

from pentalog.clients.kafka.cluster import Cluster
from pentalog.clients.kafka.connection import checked
from pentalog.clients.kafka.errors import Incompatible, KafkaFailed
from pentalog.clients.kafka.offsets import GROUP
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.types import Partition

_DESCRIBE: Final = 15
_LIST: Final = 16
_DELETE: Final = 42
_DESCRIBE_PLANNED: Final = 69


class Listed(NamedTuple):
    name: str
    state: str
    kind: str
    """`classic`: its members plan; `consumer`: the broker does."""


class Member(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: Sequence[Partition]


class Described(NamedTuple):
    name: str
    state: str
    kind: str
    members: Sequence[Member]


def listed(cluster: Cluster) -> list[Listed]:
    """All groups the cluster's first broker keeps, by name."""

    def once() -> list[Listed]:
        answer = cluster.node(-1).ask(_LIST, {"states_filter": (), "types_filter": ()})
        checked("listing groups", answer.error_code)
        return sorted(
            Listed(
                str(one.group_id),
                getattr(one, "group_state", ""),
                (getattr(one, "group_type", "") or "classic").lower(),
            )
            for one in answer.groups
        )

    return cluster.retried("listing groups", once)


def described(cluster: Cluster, name: str) -> Described | None:
    """None if there is no such group."""
    return cluster.retried(
        f"describing group {name!r}", lambda: _planned(cluster, name) or _classic(cluster, name)
    )


def _planned(cluster: Cluster, name: str) -> Described | None:
    fields = {"group_ids": (name,), "include_authorized_operations": False}
    try:
        (found,) = cluster.coordinator(name, GROUP).ask(_DESCRIBE_PLANNED, fields).groups
    except Incompatible:
        return None  # a broker from before there were such groups
    if found.error_code in (ErrorCode.group_id_not_found, ErrorCode.unsupported_version):
        return None
    checked(f"describing group {name!r}", found.error_code, found.error_message)
    members = [
        Member(
            one.member_id,
            one.instance_id,
            one.client_id,
            one.client_host,
            [
                Partition(str(part.topic_name), index)
                for part in one.assignment.topic_partitions
                for index in part.partitions
            ],
        )
        for one in found.members
    ]
    return Described(name, found.group_state, "consumer", members)


def _classic(cluster: Cluster, name: str) -> Described | None:
    fields = {"groups": (name,), "include_authorized_operations": False}
    (found,) = cluster.coordinator(name, GROUP).ask(_DESCRIBE, fields).groups
    if found.error_code is ErrorCode.group_id_not_found:
        return None
    checked(f"describing group {name!r}", found.error_code)
    if found.group_state == "Dead" and not found.members:
        return None
    members = [
        Member(
            one.member_id,
            getattr(one, "group_instance_id", None),
            one.client_id,
            one.client_host,
            list(_assigned(bytes(one.member_assignment))),
        )
        for one in found.members
    ]
    return Described(name, found.group_state, "classic", members)


def _assigned(data: bytes) -> Iterator[Partition]:
    """The partitions in a member's share, as Kafka's consumers lay it out; nothing in others."""
    try:
        found: list[Partition] = []
        position = 6
        for _ in range(_number(data, 2, 4)):
            size = _number(data, position, 2)
            topic = data[position + 2 : position + 2 + size].decode()
            position += 2 + size
            count = _number(data, position, 4)
            end = position + 4 + 4 * count
            found += [Partition(topic, _number(data, at, 4)) for at in range(position + 4, end, 4)]
            position = end
    except (EOFError, UnicodeDecodeError):
        return
    yield from found


def _number(data: bytes, position: int, size: int) -> int:
    """A count or an index: never negative, or a hostile member could send us back and forth."""
    number = int.from_bytes(data[position : position + size], "big", signed=True)
    if position + size > len(data) or number < 0:
        raise EOFError
    return number


def delete(cluster: Cluster, names: Collection[str]) -> None:
    """Remove groups and their offsets; refused while one has members."""
    for name in names:
        doing = f"deleting group {name!r}"

        def once(name: str = name, doing: str = doing) -> None:
            answer: Any = cluster.coordinator(name, GROUP).ask(_DELETE, {"groups_names": (name,)})
            (result,) = answer.results
            if result.error_code is ErrorCode.group_id_not_found:
                raise KafkaFailed(f"there is no group {name!r}")
            checked(doing, result.error_code)

        cluster.retried(doing, once)

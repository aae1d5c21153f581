"""Offsets of a consumer group that has no members: kept for programs that plan for themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from pentalog.clients.kafka.cluster import Cluster, by_topic
from pentalog.clients.kafka.connection import checked
from pentalog.model.types import Offset, Partition

_OFFSET_COMMIT: Final = 8
_OFFSET_FETCH: Final = 9
GROUP: Final = 0
"""The kind of coordinator that keeps groups."""


class GroupOffset(NamedTuple):
    offset: Offset
    """The next one to read."""
    metadata: str = ""


def topics_committed(offsets: Mapping[Partition, GroupOffset]) -> list[dict[str, Any]]:
    """What is committed, as both requests have it: that of a group and that of a transaction."""
    return [
        {
            "name": topic,
            "partitions": [
                {
                    "partition_index": at.index,
                    "committed_offset": offsets[at].offset,
                    "committed_leader_epoch": -1,
                    "committed_metadata": offsets[at].metadata,
                }
                for at in places
            ],
        }
        for topic, places in by_topic(offsets).items()
    ]


def commit(cluster: Cluster, group: str, offsets: Mapping[Partition, GroupOffset]) -> None:
    """Keep where a group goes on; refused while the group has members."""
    doing = f"committing offsets of group {group!r}"
    fields = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": topics_committed(offsets),
    }

    def once() -> None:
        answer = cluster.coordinator(group, GROUP).ask(_OFFSET_COMMIT, fields)
        for topic in answer.topics:
            for part in topic.partitions:
                checked(f"{doing} ({topic.name}-{part.partition_index})", part.error_code)

    if offsets:
        cluster.retried(doing, once)


def committed(
    cluster: Cluster,
    group: str,
    partitions: Collection[Partition] | None = None,
    *,
    stable: bool = True,
) -> dict[Partition, GroupOffset]:
    """Where a group goes on, for the partitions of which that is known; None: all of them.

    `stable` waits for transactions that are about to change it.  Without `partitions`, Apache
    Kafka does not report those that are about to commit a partition's first offset.
    """
    doing = f"asking for the offsets of group {group!r}"
    topics = None
    if partitions is not None:
        topics = [
            {"name": topic, "partition_indexes": tuple(at.index for at in places)}
            for topic, places in by_topic(partitions).items()
        ]

    def once() -> dict[Partition, GroupOffset]:
        fields = {"group_id": group, "topics": topics, "require_stable": stable}
        answer = cluster.coordinator(group, GROUP).ask(_OFFSET_FETCH, fields)
        checked(doing, answer.error_code)
        found: dict[Partition, GroupOffset] = {}
        for topic in answer.topics:
            for part in topic.partitions:
                checked(doing, part.error_code)
                if part.committed_offset >= 0:
                    at = Partition(topic.name, part.partition_index)
                    found[at] = GroupOffset(part.committed_offset, part.metadata or "")
        return found

    return cluster.retried(doing, once)

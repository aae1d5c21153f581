"""Which rights each request of RustLog needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from pentalog.broker import rights
from pentalog.broker.port import Topic
from pentalog.broker.rights import Need, NeedsOf
from pentalog.broker.security import Access, Kind, Operation
from pentalog.protocols.rustlog.messages import (
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Fetch,
    ListTopics,
    MetricsFetch,
    OffsetCommit,
    OffsetFetch,
    Ping,
    Produce,
    Request,
)


def _write(topic: str) -> tuple[Need, ...]:
    return (rights.write_topic(topic),)


def _fetch(topic: str, group: str) -> tuple[Need, ...]:
    needs = (rights.read_topic(topic),)
    return (*needs, rights.read_group(group)) if group else needs


def _commit(group: str, topic: str) -> tuple[Need, ...]:
    return (rights.read_group(group), rights.read_topic(topic))


def _committed(group: str, topic: str) -> tuple[Need, ...]:
    return (rights.describe_group(group), rights.describe_topic(topic))


def _see(topic: str) -> tuple[Need, ...]:
    return (rights.describe_topic(topic),)


def _see_cluster() -> tuple[Need, ...]:
    return (Need(Operation.DESCRIBE, Kind.CLUSTER),)


def _nothing() -> tuple[Need, ...]:
    return ()


_Names: TypeAlias = Callable[[Any], tuple[str, ...]]


def _topic(asked: Any) -> tuple[str, ...]:
    return (asked.topic,)


def _group_and_topic(asked: Any) -> tuple[str, ...]:
    return (asked.group, asked.topic)


def _no_names(_: Any) -> tuple[str, ...]:
    return ()


NEEDS: Final[Mapping[type, tuple[NeedsOf, _Names]]] = {
    Produce: (_write, _topic),
    Fetch: (_fetch, lambda asked: (asked.topic, asked.group_id or "")),
    OffsetCommit: (_commit, _group_and_topic),
    OffsetFetch: (_committed, _group_and_topic),
    CreateTopic: (lambda topic: (rights.create_topic(topic),), _topic),
    ListTopics: (_nothing, _no_names),
    DescribeTopic: (_see, _topic),
    DescribePartition: (_see, _topic),
    MetricsFetch: (_see_cluster, _no_names),
    Ping: (_nothing, _no_names),
}
"""What each needs of the names it is about.

A listing needs nothing: it leaves out what the caller may not see.
"""


def check(access: Access, request: Request) -> None:
    """Raise `Unauthorized` unless it may be done.  Asked before anything is looked up."""
    if access.guarded:
        needs_of, names_of = NEEDS[type(request)]
        rights.check_for(access, needs_of, *names_of(request))


def may_write(access: Access, topic: str) -> bool:
    """Quietly: a request that may not is asked about again."""
    return not access.guarded or rights.may(access, _write, topic)


def visible(access: Access, topics: Iterable[Topic]) -> Iterable[Topic]:
    """Those of the topics that this client may know of; each is asked about in its turn."""
    if not access.guarded:
        return topics
    return (topic for topic in topics if access.sees(Kind.TOPIC, topic.name))

"""Which rights each request of RustLog needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pentalog.broker import rights
from pentalog.broker.port import Topic, Topics
from pentalog.broker.rights import Need
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


def _fetch(request: Fetch) -> tuple[Need, ...]:
    needs = (rights.read_topic(request.topic),)
    return (*needs, rights.read_group(request.group_id)) if request.group_id else needs


NEEDS: Final[Mapping[type, Callable[[Any], tuple[Need, ...]]]] = {
    Produce: lambda asked: (rights.write_topic(asked.topic),),
    Fetch: _fetch,
    OffsetCommit: lambda asked: (rights.read_group(asked.group), rights.read_topic(asked.topic)),
    OffsetFetch: lambda asked: (
        rights.describe_group(asked.group),
        rights.describe_topic(asked.topic),
    ),
    CreateTopic: lambda asked: (rights.create_topic(asked.topic),),
    ListTopics: lambda _: (),
    DescribeTopic: lambda asked: (rights.describe_topic(asked.topic),),
    DescribePartition: lambda asked: (rights.describe_topic(asked.topic),),
    MetricsFetch: lambda _: (Need(Operation.DESCRIBE, Kind.CLUSTER),),
    Ping: lambda _: (),
}
"""A listing needs nothing: it leaves out what the caller may not see."""


def check(access: Access, request: Request) -> None:
    """Raise `Unauthorized` unless it may be done.  Asked before anything is looked up."""
    if access.guarded:
        rights.check(access, NEEDS[type(request)](request))


def may_write(access: Access, topic: str) -> bool:
    return access.allows(Operation.WRITE, Kind.TOPIC, topic)


def visible(access: Access, topics: Topics) -> Sequence[Topic]:
    """The topics this caller may know of."""
    if not access.guarded:
        return topics.all()
    return [topic for topic in topics.all() if access.sees(Kind.TOPIC, topic.name)]

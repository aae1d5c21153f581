"""What the broker must know before a request of RustLog can be served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pentalog.broker.port import Broker
from pentalog.model.later import Later
from pentalog.model.types import Partition
from pentalog.protocols.rustlog.messages import (
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Fetch,
    ListTopics,
    OffsetCommit,
    OffsetFetch,
    Produce,
    Request,
)
from pentalog.session import Replies

_AHEAD_BYTES_MAX: Final = 7 << 20
"""No reply in either dialect holds less."""

Lookups = tuple[Later[None], ...]


class Asking:
    """What one connection has asked for; its requests wait meanwhile."""

    __slots__ = ("_asked", "_broker", "_replies", "current")

    def __init__(self, broker: Broker, replies: Replies) -> None:
        self.current = broker.knowledge.current
        """Nothing need ever be asked for."""
        self._broker = broker
        self._replies = replies
        self._asked: Lookups = ()

    def must_wait(self, request: Request) -> bool:
        """Is what this request needs on its way?  Then it is to come again.

        Asked again, raises what stood against knowing it.
        """
        if self._asked:
            asked, self._asked = self._asked, ()
            for later in asked:
                later.check()
            return False
        look = _LOOKUPS.get(type(request))
        asked = () if look is None else look(self._broker, request)
        left = sum(not later.ready for later in asked)
        if not left:
            return False
        self._asked = asked
        release = self._replies.hold()

        def arrived(_: Later[None]) -> None:
            nonlocal left
            left -= 1
            if not left:
                release()

        for later in asked:
            if not later.ready:
                later.then(arrived)
        return True

    def forget(self) -> None:
        """The request was served without a second question."""
        self._asked = ()


def _offset_commit(broker: Broker, request: OffsetCommit) -> Lookups:
    return (broker.knowledge.topic(request.topic, request.partition),)


def _produce(broker: Broker, request: Produce) -> Lookups:
    if request.records:
        return (broker.knowledge.topic(request.topic, request.partition),)
    # One without records is answered with the end of the partition.
    return (broker.knowledge.partitions(request.topic, (request.partition,)),)


def _fetch(broker: Broker, request: Fetch) -> Lookups:
    at = Partition(request.topic, request.partition)
    if not request.group_id and request.max_bytes > 0:
        bytes_max = min(request.max_bytes, _AHEAD_BYTES_MAX)
        return (broker.knowledge.records(at, request.offset, bytes_max=bytes_max),)
    marks = broker.knowledge.partitions(request.topic, (request.partition,))
    if not request.group_id:
        return (marks,)
    return (marks, broker.knowledge.offsets(request.group_id, (at,)))


def _offset_fetch(broker: Broker, request: OffsetFetch) -> Lookups:
    at = Partition(request.topic, request.partition)
    return (broker.knowledge.offsets(request.group, (at,)),)


def _topics(broker: Broker, _: ListTopics | CreateTopic) -> Lookups:
    return (broker.knowledge.topics(),)


def _describe_topic(broker: Broker, request: DescribeTopic) -> Lookups:
    return (broker.knowledge.partitions(request.topic),)


def _describe_partition(broker: Broker, request: DescribePartition) -> Lookups:
    return (broker.knowledge.partitions(request.topic, (request.partition,)),)


_LOOKUPS: Final[Mapping[type, Callable[[Broker, Any], Lookups]]] = {
    Produce: _produce,
    Fetch: _fetch,
    OffsetCommit: _offset_commit,
    OffsetFetch: _offset_fetch,
    CreateTopic: _topics,
    ListTopics: _topics,
    DescribeTopic: _describe_topic,
    DescribePartition: _describe_partition,
}
"""Ping and MetricsFetch tell what is known."""

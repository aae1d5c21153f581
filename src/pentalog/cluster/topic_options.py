"""What protocols remember of a cluster's topics: read at every gateway, changed by the owner."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pentalog.broker.port import Topic
from pentalog.broker.topic_options import LocalTopicOptions
from pentalog.cluster.state_topic import ClusterState, Tenure
from pentalog.cluster.steps import Steps
from pentalog.cluster.topics import ClusterTopics
from pentalog.model.later import Later

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class ClusterTopicOptions:
    """Implements `sourcing.TopicOptions`, and is a `Tenant` of the state."""

    def __init__(self, state: ClusterState, topics: ClusterTopics) -> None:
        self._state = state
        self._topics = topics
        self._read: dict[str, dict[str, str]] = {}
        self._local: LocalTopicOptions | None = None
        self._tenure: Tenure | None = None
        state.tenants.append(self)
        state.watch(("topic_options",), self._reread)
        topics.deleted.append(self._topic_deleted)

    def open(self) -> None:
        self._reread()

    def get(self, topic: str) -> Mapping[str, str]:
        if self._local is not None:
            return self._local.get(topic)
        return self._read.get(topic, _NONE)

    def set(self, topic: str, options: Mapping[str, str]) -> None:
        known = self.get(topic)
        if all(known.get(name) == value for name, value in options.items()):
            return
        if self._local is None or self._tenure is None:
            self._state.refuse()
        self._local.set(topic, options)
        self._topics.await_also(self._tenure.settle())

    def check(self) -> None:
        if self._local is None:
            self._state.refuse()
        self._local.check()

    def move_in(self, tenure: Tenure) -> Steps[None]:
        local = LocalTopicOptions(tenure)
        local.open()
        self._local, self._tenure = local, tenure
        yield from ()

    def move_out(self) -> None:
        self._local = self._tenure = None
        self._reread()

    def _reread(self) -> None:
        read: dict[str, dict[str, str]] = {}
        for topic, name, value in self._state.rows.rows(
            "SELECT topic, name, value FROM topic_options"
        ):
            read.setdefault(str(topic), {})[str(name)] = str(value)
        self._read = read
        self._topics.touch()

    def _topic_deleted(self, topic: Topic) -> Later[None]:
        if self._local is None or self._tenure is None:
            return Later.now(None)
        self._local.topic_deleted(topic)
        return self._tenure.settle()

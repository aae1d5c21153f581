"""How many bytes partitions take on the cluster's disks, for those who have just asked for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from pentalog.cluster.fleet import ASKING, Fleet
from pentalog.cluster.steps import Steps, all_of, first_of
from pentalog.cluster.topics import ClusterTopics
from pentalog.model.errors import BrokerError, UnsupportedVersion
from pentalog.model.later import Later
from pentalog.model.types import Partition

_DESCRIBE_LOG_DIRS: Final = 35
_PATIENCE_MS: Final = 2_000
"""With a node that does not answer."""
_BELIEVED_MS: Final = 10_000


class Sizes:
    def __init__(self, fleet: Fleet, topics: ClusterTopics) -> None:
        self._fleet = fleet
        self._topics = topics
        self._found: dict[Partition, int] = {}
        self._until_s = 0.0

    def of(self, at: Partition) -> int:
        size = self._found.get(at)
        if size is None or self._fleet.monotonic() > self._until_s:
            raise UnsupportedVersion(f"the size of {at} in the cluster has not been asked for")
        return size

    def refresh(self, topics: Collection[str]) -> Steps[None]:
        """Ask every node once; what none of them tells is left out."""
        known = [self._topics.get(name) for name in topics if self._topics.known(name)]
        asked = [
            {"topic": topic.name, "partitions": tuple(range(topic.partitions))} for topic in known
        ]
        if not asked:
            return
        answers = [
            link.ask(_DESCRIBE_LOG_DIRS, {"topics": asked}) for link in self._fleet.everyone(ASKING)
        ]
        yield first_of([all_of(answers), self._fleet.sleep(_PATIENCE_MS)])
        found: dict[Partition, int] = {}
        for answer in answers:
            for at, size in _told(answer):
                # Copies differ by what they have not yet got, or dropped.
                found[at] = max(found.get(at, 0), size)
        self._found = found
        self._until_s = self._fleet.monotonic() + _BELIEVED_MS / 1000


def _told(answer: Later[Any]) -> Iterator[tuple[Partition, int]]:
    if not answer.ready:
        return
    try:
        directories = answer.value.results
    except BrokerError:
        return
    for directory in directories:
        for topic in directory.topics:
            for part in topic.partitions:
                yield Partition(topic.name, part.partition_index), part.partition_size

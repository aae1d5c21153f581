"""Topics that patterns find: matched in steps, and once for all groups that use a pattern."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final
from uuid import UUID

from pentalog.broker.patterns import pattern
from pentalog.broker.port import Topics
from pentalog.model.kafka_names import is_kafka_name

STEP_COST: Final = 1_000
"""Work between two steps, as `Pattern.cost` counts: a millisecond."""
FOUND_MAX: Final = 200_000
"""Topics kept for all patterns together; about 64 bytes each."""


class TopicPatterns:
    """Finds topics by patterns and keeps what it found until topics come or go."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._version = -1
        self._found: dict[str, frozenset[UUID]] = {}
        """By pattern, the one that was asked for longest ago first."""
        self._kept = 0

    def find(self, text: str) -> Generator[int, None, frozenset[UUID]]:
        """Return the topics of Kafka's kind that match; yields the cost of each step."""
        version = self._topics.version
        found = self._known(text, version)
        if found is not None:
            return found
        compiled, matching, cost = pattern(text), [], 0
        for topic in tuple(self._topics.all(internal=True)):
            if is_kafka_name(topic.name):
                cost += compiled.cost(len(topic.name))
                if compiled.matches(topic.name):
                    matching.append(topic.topic_id)
            else:
                cost += 1
            if cost >= STEP_COST:
                yield cost
                cost = 0
        found = frozenset(matching)
        if version == self._topics.version:
            found = self._keep(text, found)
        return found

    def _known(self, text: str, version: int) -> frozenset[UUID] | None:
        if version != self._version:
            self._found.clear()
            self._kept = 0
            self._version = version
        found = self._found.pop(text, None)
        if found is not None:
            self._found[text] = found
        return found

    def _keep(self, text: str, found: frozenset[UUID]) -> frozenset[UUID]:
        if text in self._found or len(found) > FOUND_MAX:
            return self._found.get(text, found)
        # Patterns that find the same topics, as `.*` and `^.*$` do, share one set.
        found = next((kept for kept in self._found.values() if kept == found), found)
        self._found[text] = found
        self._kept += 1 + len(found)
        while self._kept > FOUND_MAX:
            oldest = next(iter(self._found))
            self._kept -= 1 + len(self._found.pop(oldest))
        return found

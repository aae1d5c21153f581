"""What protocols remember of topics beyond the log's own settings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pentalog.broker.needs import Rows
from pentalog.broker.port import Topic

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class LocalTopicOptions:
    """Implements `sourcing.TopicOptions`."""

    def __init__(self, state: Rows) -> None:
        self._state = state
        self._options: dict[str, dict[str, str]] = {}

    def open(self) -> None:
        for topic, name, value in self._state.rows("SELECT topic, name, value FROM topic_options"):
            self._options.setdefault(topic, {})[name] = value

    def get(self, topic: str) -> Mapping[str, str]:
        return self._options.get(topic, _NONE)

    def set(self, topic: str, options: Mapping[str, str]) -> None:
        known = self._options.get(topic, _NONE)
        changed = {name: value for name, value in options.items() if known.get(name) != value}
        if not changed:
            return
        self._state.check()
        self._options[topic] = {**known, **changed}
        for name, value in changed.items():
            self._state.write(
                "INSERT OR REPLACE INTO topic_options VALUES (?, ?, ?)", topic, name, value
            )

    def check(self) -> None:
        self._state.check()

    def topic_deleted(self, topic: Topic) -> None:
        """To be called in the turn of the deletion."""
        if self._options.pop(topic.name, None) is not None:
            self._state.write("DELETE FROM topic_options WHERE topic = ?", topic.name)

"""What an engine that keeps nothing itself is asked before its topics and groups are told of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pentalog.broker.port import Broker
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later, all_of
from pentalog.protocols.http.exposition import GROUPS_MAX, TOPICS_MAX
from pentalog.runtime import Runtime

_PATIENCE_MS: Final = 5_000
"""Those who look at what passes here do not wait longer than they must."""


class Survey:
    """One round of questions, shared by all who ask while it lasts."""

    def __init__(self, broker: Broker) -> None:
        self.known: Later[bool] = Later()
        """Was everything answered?"""
        self._broker = broker

    def start(self, runtime: Runtime) -> None:
        patience = runtime.after(_PATIENCE_MS, lambda: self._end(answered=False))
        self.known.then(lambda _: patience.cancel())
        known = self._broker.knowledge
        self._ask([known.topics(), known.groups()], self._listed)

    def _listed(self) -> None:
        known = self._broker.knowledge
        topics = self._broker.topics.all()[:TOPICS_MAX]
        groups = sorted(self._broker.groups.offsets.groups())[:GROUPS_MAX]
        asked = [known.partitions(topic.name) for topic in topics]
        asked += [known.offsets(group) for group in groups]
        self._ask(asked, lambda: self._end(answered=True))

    def _ask(self, asked: list[Later[None]], then: Callable[[], None]) -> None:
        def arrived(later: Later[None]) -> None:
            try:
                _ = later.value
            except BrokerError:
                self._end(answered=False)
            else:
                then()

        all_of(asked).then(arrived)

    def _end(self, *, answered: bool) -> None:
        if not self.known.ready:
            self.known.fill(answered)


class Surveys:
    """Starts surveys of one broker, one at a time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._newest: Survey | None = None

    def join(self, runtime: Runtime) -> Later[bool]:
        """Return the outcome of the running survey, or of a new one."""
        if self._newest is None or self._newest.known.ready:
            self._newest = Survey(self._broker)
            self._newest.start(runtime)
        return self._newest.known


def surveyed(broker: Broker, runtime: Runtime) -> Later[bool]:
    """Ready when the marks of topics and the offsets of groups are known, or cannot be."""
    return broker.share("http", lambda: Surveys(broker)).join(runtime)

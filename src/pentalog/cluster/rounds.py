"""One conversation for all who ask for the same; those who come while it runs share the next."""

from __future__ import annotations

from collections.abc import Callable

from pentalog.cluster.steps import Steps, begin
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later


class Rounds:
    """However many ask, one round runs and one more waits."""

    def __init__(self, once: Callable[[], Steps[None]]) -> None:
        self._once = once
        self._running = False
        self._next: Later[None] | None = None

    def ask(self) -> Later[None]:
        """Ready with the outcome of a round that begins now or later."""
        if self._next is None:
            self._next = Later()
        asked = self._next
        if not self._running:
            self._begin()
        return asked

    def _begin(self) -> None:
        asked, self._next = self._next, None
        if asked is not None:
            self._running = True
            begin(self._once()).then(lambda outcome: self._ended(asked, outcome))

    def _ended(self, asked: Later[None], outcome: Later[None]) -> None:
        self._running = False
        self._begin()
        try:
            asked.fill(outcome.value)
        except BrokerError as refusal:
            asked.refuse(refusal)

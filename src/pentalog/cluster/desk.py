"""Where facets find the rows of the state at every gateway, and ask whether they may write here."""

from __future__ import annotations

from pentalog.broker.state import Row, Value
from pentalog.cluster.state_topic import ClusterState
from pentalog.model.later import Later


class Desk:
    """The rows there are at the moment, whichever object has them; implements `needs.Rows`."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def rows(self, sql: str, *values: Value) -> list[Row]:
        return self._state.rows.rows(sql, *values)

    def check(self) -> None:
        tenure = self._state.tenure
        if tenure is None:
            self._state.refuse()
        tenure.check()

    def write(self, sql: str, *values: Value) -> None:
        self._state.rows.write(sql, *values)

    def settle(self) -> Later[None]:
        return self._state.rows.settle()

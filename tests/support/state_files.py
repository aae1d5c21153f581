"""A state file that refuses writes on demand."""

from __future__ import annotations

from pentalog.broker.state import State


def refuse_writes(state: State) -> None:
    """Make the file read-only, as far as the connections of its owner are concerned."""
    _set_read_only(state, "ON")


def accept_writes(state: State) -> None:
    _set_read_only(state, "OFF")


def _set_read_only(state: State, switch: str) -> None:
    assert state._database is not None
    for connection in (state._database, state._near):
        if connection is not None:
            connection.execute(f"PRAGMA query_only = {switch}")

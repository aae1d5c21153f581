"""A state file that refuses writes on demand."""

from __future__ import annotations

from pentalog.broker.state import State


def refuse_writes(state: State) -> None:
    """Make the file read-only, as far as the connection of its lane is concerned."""
    assert state._database is not None
    state._database.execute("PRAGMA query_only = ON")


def accept_writes(state: State) -> None:
    assert state._database is not None
    state._database.execute("PRAGMA query_only = OFF")

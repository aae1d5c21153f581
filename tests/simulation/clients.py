"""What the world needs of the clients of one protocol.

To add a protocol, write a class that satisfies `Clients`, add an instance to `World.clients`, and
weights for its kinds of steps to `plan.py`.  An operation is a coroutine.  Before it sends, it
reports to `world.judge` what it is about to do; after an answer, what came back.  `Lost` may be
raised at every await: what was reported before stays an open attempt.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tests.simulation.world import Task


class Clients(Protocol):
    """All clients of one protocol."""

    @property
    def kinds(self) -> Collection[str]:
        """The kinds of steps that these clients do."""

    def start(self, kind: str, random: Random) -> Task | None:
        """Begin one operation; None if its client is busy or has nothing to do.

        All choices come from `random`, so that the same plan makes the same ones.
        """

    def disconnect(self) -> None:
        """The broker has gone, with all connections."""


class AuditedClients(Clients, Protocol):
    """Clients that read back more than Kafka's audit does, which comes before theirs."""

    def audit(self, *, restart: bool) -> None:
        """Compare with the model, with nothing under way; `restart`: the broker just started."""

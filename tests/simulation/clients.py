"""What the world needs of the clients of one protocol.

To add a protocol, write a class that satisfies `Clients`, add an instance to `World.clients`, and
weights for its kinds of steps to `plan.py`.  An operation is a coroutine.  Before it sends, it
reports to `world.judge` what it is about to do; after an answer, what came back.  `Lost` may be
raised at every await: what was reported before stays an open attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tests.simulation.world import Task, World

Operation = tuple[str, Coroutine[Any, Any, None]]
"""What the story calls it, and what it does."""


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


class Turns:
    """Lets each client do one thing at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._busy: set[str] = set()

    def clear(self) -> None:
        """The broker has gone: nothing is under way."""
        self._busy.clear()

    def start(
        self, role: str, random: Random, begin: Callable[[str, Random], Operation | None]
    ) -> Task | None:
        """Begin an operation; None if its client is busy or has nothing to do.

        A role with a star is that of two clients.
        """
        client = role[:-1] + str(random.randint(0, 1)) if role.endswith("*") else role
        if client in self._busy:
            return None
        operation = begin(client, random)
        if operation is None:
            return None
        name, run = operation
        self._busy.add(client)
        self._world.counts["operations"] += 1
        return self._world.task(name, run, lambda: self._busy.discard(client))


class AuditedClients(Clients, Protocol):
    """Clients that read back more than Kafka's audit does, which comes before theirs."""

    def audit(self, *, restart: bool) -> None:
        """Compare with the model, with nothing under way; `restart`: the broker just started."""

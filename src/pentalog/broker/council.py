"""The gateways in front of one cluster: who they are, and which of them owns their state.

A broker on its own files has no others, and owns everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from pentalog.broker.upstream import Downstream, Upstream


class Peer(NamedTuple):
    """One gateway, as all of them know it."""

    gateway_id: str
    number: int
    """From 1, no other gateway's, and kept for as long as the gateway is there."""
    addresses: Mapping[str, tuple[str, int]]
    """Where its listeners are for clients: by their names (`cursus`, `cursus+tls`)."""

    def address(self, door: str) -> tuple[str, int] | None:
        """Of the listener with this name, else of any of this door; None: it has none."""
        name = self.listener(door)
        return None if name is None else self.addresses[name]

    def listener(self, door: str) -> str | None:
        """The name of that listener."""
        if door in self.addresses:
            return door
        door = door.partition("+")[0]
        of_door = [name for name in self.addresses if name.partition("+")[0] == door]
        return min(of_door, key=len, default=None)


class Council(Protocol):
    @property
    def me(self) -> Peer | None:
        """This gateway; its number is 0 until the others know it."""

    @property
    def fleet(self) -> Sequence[Peer]:
        """All gateways by their numbers, as last agreed; this one alone until then."""

    @property
    def owner(self) -> Peer | None:
        """Who owns the state, as far as is known; None: nobody at the moment."""

    @property
    def owned(self) -> bool:
        """Is it this one, beyond doubt, now?"""

    @property
    def secret(self) -> str:
        """By which gateways know each other at the owner; empty until it is known."""

    @property
    def generation(self) -> int:
        """Grows whenever the gateways agree anew; -1 before the first time."""

    def watch(self, run: Callable[[], None]) -> Callable[[], None]:
        """Call `run` whenever any of this has changed, until the function returned is called."""

    def call(self, peer: Peer, door: str, caller: Downstream) -> Upstream | None:
        """Connect to a door of another gateway; None if it has no such door."""


class Alone:
    """Implements `Council` for a broker that has no others."""

    me: Peer | None = None
    fleet: Sequence[Peer] = ()
    owner: Peer | None = None
    owned = True
    secret = ""
    generation = 0

    def watch(self, run: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def call(self, peer: Peer, door: str, caller: Downstream) -> Upstream | None:
        return None


ALONE: Final = Alone()

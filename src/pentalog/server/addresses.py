"""Connections by the address they come from, and which of them to close for a newcomer.

Everything here takes constant time: it runs for every connection that is accepted, also while
one address tries to take all of them.
"""

from __future__ import annotations

import ipaddress
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

_SAMPLE: Final = 256
"""Connections of an address that are compared before one of them is closed."""


class Closable(Protocol):
    @property
    def standing(self) -> tuple[int, float]:
        """The least is closed first: what it is good for, then when it was last used."""


G = TypeVar("G", bound=Closable)


def block_of(host: str) -> str:
    """Return what counts as one address: an IPv4 address, or the /64 of an IPv6 address."""
    host = host.removeprefix("::ffff:")
    if ":" not in host:
        return host
    try:
        return ipaddress.IPv6Address(host).packed[:8].hex()
    except ValueError:
        return host


class Addresses(Generic[G]):
    """Who is connected, by address; knows the address with the most connections."""

    def __init__(self) -> None:
        self._guests: dict[str, dict[G, None]] = {}
        self._by_count: dict[int, dict[str, None]] = {}
        self._most = 0

    def count(self, block: str) -> int:
        return len(self._guests.get(block, ()))

    def add(self, block: str, guest: G) -> None:
        guests = self._guests.setdefault(block, {})
        guests[guest] = None
        self._move(block, len(guests) - 1, len(guests))

    def discard(self, block: str, guest: G) -> None:
        guests = self._guests.get(block, {})
        if guest not in guests:
            return
        del guests[guest]
        self._move(block, len(guests) + 1, len(guests))
        if not guests:
            del self._guests[block]

    def crowded(self, block: str) -> str | None:
        """Return the address with the most connections, if another one deserves a place more.

        None if no address has at least two connections more than this one.
        """
        if self._most < self.count(block) + 2:
            return None
        return next(iter(self._by_count[self._most]))

    def least(self, block: str) -> G:
        """Return the connection of an address that is closed first.

        Of many connections a sample is compared; the next call compares others.
        """
        guests = self._guests[block]
        sample = list(islice(guests, _SAMPLE))
        if len(guests) > _SAMPLE:
            for guest in sample:
                del guests[guest]
                guests[guest] = None
        return min(sample, key=lambda guest: guest.standing)

    def _move(self, block: str, before: int, after: int) -> None:
        if before:
            blocks = self._by_count[before]
            del blocks[block]
            if not blocks:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, {})[block] = None
        # Counts change by one, so the most does too.
        if after > self._most or (before == self._most and before not in self._by_count):
            self._most = after

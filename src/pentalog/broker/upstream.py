"""Connections to another gateway, for what only that one may do; the server implements them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Downstream(Protocol):
    """Who called."""

    def opened(self) -> None:
        """The peer can be spoken to."""

    def buffer(self) -> memoryview:
        """Where what comes next is to be put; never empty."""

    def received(self, size: int) -> None:
        """So many bytes have been put there."""

    def lost(self, why: str) -> None:
        """There is no connection, or none any more.  Told once."""


class Upstream(Protocol):
    """One way to one peer, open or about to be."""

    def send(self, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """Kept, not copied, until they can leave; dropped if the peer has gone."""

    def pause(self) -> None:
        """Receive nothing for the moment."""

    def resume(self) -> None: ...

    def close(self) -> None:
        """Nothing is told to the caller after this."""


class Caller(Protocol):
    """How other gateways are reached."""

    def call(self, listener: str, host: str, port: int, caller: Downstream) -> Upstream:
        """Connect to a listener by its name, which says what it demands."""

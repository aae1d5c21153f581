"""Port for connections to other machines; the server implements it on its event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

Bytes: TypeAlias = bytes | bytearray | memoryview


class Wire(Protocol):
    """One way to one peer, open or about to be."""

    def send(self, pieces: Sequence[Bytes]) -> None:
        """Kept, not copied, until they can leave; dropped if the peer has gone."""

    def close(self) -> None:
        """Nothing is told to the receiver after this."""


class Receiver(Protocol):
    def opened(self) -> None:
        """The peer can be spoken to."""

    def buffer(self) -> memoryview:
        """Where what comes next is to be put; never empty."""

    def received(self, size: int) -> None:
        """So many bytes have been put there."""

    def lost(self, why: str) -> None:
        """There is no connection, or none any more.  Told once."""


class Dialer(Protocol):
    def dial(self, host: str, port: int, receiver: Receiver) -> Wire: ...

"""Which SPUs there are, and which of them leads a partition.

A broker on its own files is one SPU.  Of gateways in front of one cluster each is one; any of them
serves any partition, so who leads which only spreads clients over them.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from pentalog.broker.council import Council
from pentalog.session import Address

if TYPE_CHECKING:
    from pentalog.session import Context

SPU_ID: Final = 5001
"""Of the only one, and of the first of several."""
_ENDPOINT: Final = "fluvio-spu"


class Spu(NamedTuple):
    spu_id: int
    address: Address | None
    """Where the client that is told reaches it; None: that port is not open."""

    @property
    def name(self) -> str:
        return f"custom-spu-{self.spu_id}"


class Spus:
    """As the gateways have last agreed."""

    def __init__(self, council: Council) -> None:
        self._council = council
        self._fleet = tuple(council.fleet)
        self._ids = self._led()

    def changed(self) -> bool:
        """Has anybody come, gone or moved since this was last asked?"""
        before, self._fleet = self._fleet, tuple(self._council.fleet)
        self._ids = self._led()
        return before != self._fleet

    def leader(self, topic: str, index: int) -> int:
        """The same at every gateway."""
        return self._ids[(zlib.crc32(topic.encode()) + index) % len(self._ids)]

    def seen_by(self, context: Context) -> Mapping[str, Spu]:
        """All of them by name, as this client reaches them."""
        _, plus, demands = context.listener.partition("+")
        wanted = f"{_ENDPOINT}{plus}{demands}"
        found = [Spu(self._own_id(), _own_address(context))]
        for peer in self._council.fleet:
            place = peer.address(wanted)
            if place is not None and not self._is_me(peer.gateway_id):
                found.append(Spu(SPU_ID - 1 + peer.number, Address(*place)))
        return {spu.name: spu for spu in sorted(found)}

    def _led(self) -> tuple[int, ...]:
        others = [
            SPU_ID - 1 + peer.number
            for peer in self._council.fleet
            if peer.address(_ENDPOINT) is not None
        ]
        return tuple(sorted(others)) or (self._own_id(),)

    def _own_id(self) -> int:
        for peer in self._council.fleet:
            if self._is_me(peer.gateway_id):
                return SPU_ID - 1 + max(1, peer.number)
        return SPU_ID

    def _is_me(self, gateway_id: str) -> bool:
        me = self._council.me
        return me is not None and me.gateway_id == gateway_id


def _own_address(context: Context) -> Address | None:
    try:
        return context.advertised(_ENDPOINT)
    except KeyError:
        return None

"""Producers that name themselves: which of their lives is the newest, and their identity.

The identity is drawn from name and epoch alone, so a batch that reached the log in a life of the
broker whose last rows were lost is still known as a repetition in the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pentalog.broker.principal_limits import FairKeys
from pentalog.broker.sourcing import Sequenced
from pentalog.broker.state import State
from pentalog.config import Config
from pentalog.model.errors import ProducerFenced
from pentalog.model.later import Later
from pentalog.model.types import Identity, Partition

if TYPE_CHECKING:
    from pentalog.log.store import Store

NAMES_MAX: Final = 100_000
"""Names whose newest epoch is remembered; of older ones only repetitions are known.

A principal beyond its share loses its own oldest: it cannot make the broker forget those of others.
"""

_OWN_RANGE: Final = 1 << 62
"""Ids given out by the broker itself stay far below."""
_UPSERT: Final = "INSERT OR REPLACE INTO named_producers VALUES (?, ?, ?, ?)"
_NOBODY: Final = ""


class LocalNamedProducers:
    """Implements `sourcing.NamedProducers`."""

    def __init__(self, store: Store, state: State, config: Config) -> None:
        self._store = store
        self._state = state
        self._epochs: dict[bytes, int] = {}
        self._owners: dict[bytes, str] = {}
        """Of names that belong to a principal."""
        self._names: FairKeys[bytes] = FairKeys(
            NAMES_MAX, share_percent=config.principal_share_percent
        )
        self._unsettled: dict[bytes, Later[None]] = {}
        self._number = 0

    def open(self) -> None:
        for name, epoch, number, owner in self._state.rows(
            "SELECT name, epoch, number, owner FROM named_producers ORDER BY number"
        ):
            self._set(name, epoch, owner, owner)
            self._number = number

    def epoch(self, name: bytes) -> int | None:
        return self._epochs.get(name)

    def owner(self, name: bytes) -> str:
        return self._owners.get(name, _NOBODY)

    def who(self, name: bytes, epoch: int) -> Identity:
        return _identity(name, epoch)

    def enter(
        self, name: bytes, epoch: int, owner: str = _NOBODY, charged: str = ""
    ) -> Later[None]:
        known = self._epochs.get(name)
        owned = self._owners.get(name, _NOBODY)
        if known == epoch and (owned or not owner):
            return self._unsettled.get(name) or Later.now(None)
        if known is not None and epoch < known:
            raise ProducerFenced(f"epoch {epoch} of producer {name!r} is fenced by epoch {known}")
        self._state.check()
        owner = owned or owner
        charged = owner or charged
        self._set(name, epoch, owner, charged)
        self._number += 1
        self._state.write(_UPSERT, name, epoch, self._number, owner)
        self._make_room(charged)
        settled = self._state.settle()
        if not settled.ready:
            self._unsettled[name] = settled
            settled.then(lambda later: self._settled(name, later))
        return settled

    def _set(self, name: bytes, epoch: int, owner: str, charged: str) -> None:
        self._epochs[name] = epoch
        if owner:
            self._owners[name] = owner
        self._names.use(name, charged)

    def _make_room(self, charged: str) -> None:
        """Forget the oldest name of a client with too many, or of the one with most."""
        oldest = self._names.excess(charged)
        if oldest is not None:
            self._names.discard(oldest)
            del self._epochs[oldest]
            self._owners.pop(oldest, None)
            self._state.write("DELETE FROM named_producers WHERE name = ?", oldest)

    def written(self, at: Partition, who: Identity) -> Sequence[Sequenced]:
        producer = self._store.get(at).producers.get(who.producer_id)
        if producer is None or producer.epoch != who.epoch:
            return ()
        return [
            Sequenced(batch.sequence_first, batch.sequence_last, batch.base_offset)
            for batch in producer.batches
        ]

    def _settled(self, name: bytes, settled: Later[None]) -> None:
        if self._unsettled.get(name) is settled:
            del self._unsettled[name]


@lru_cache(maxsize=4096)
def _identity(name: bytes, epoch: int) -> Identity:
    digest = hashlib.sha256(b"%d:%b" % (epoch, name)).digest()
    return Identity(_OWN_RANGE | int.from_bytes(digest[:8], "big") >> 2, 0)

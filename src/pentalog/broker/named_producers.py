"""Producers that name themselves: which of their lives is the newest, and their identity.

The identity is drawn from name and epoch alone, so a batch that reached the log in a life of the
broker whose last rows were lost is still known as a repetition in the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pentalog.broker.sourcing import Sequenced
from pentalog.broker.state import State
from pentalog.model.errors import ProducerFenced
from pentalog.model.later import Later
from pentalog.model.types import Identity, Partition

if TYPE_CHECKING:
    from pentalog.log.store import Store

NAMES_MAX: Final = 100_000
"""Names whose newest epoch is remembered; of older ones only repetitions are known."""
NAMES_OWNER_MAX: Final = 10_000
"""The same, of one principal: it cannot make the broker forget the names of others."""

_OWN_RANGE: Final = 1 << 62
"""Ids given out by the broker itself stay far below."""
_UPSERT: Final = "INSERT OR REPLACE INTO named_producers VALUES (?, ?, ?, ?)"
_NOBODY: Final = ""


class LocalNamedProducers:
    """Implements `sourcing.NamedProducers`."""

    def __init__(self, store: Store, state: State) -> None:
        self._store = store
        self._state = state
        self._epochs: dict[bytes, int] = {}
        self._owners: dict[bytes, str] = {}
        """Of names that belong to a principal."""
        self._by_owner: dict[str, dict[bytes, None]] = {}
        """Names of each owner, or of none, in the order of their last change, oldest first."""
        self._unsettled: dict[bytes, Later[None]] = {}
        self._number = 0

    def open(self) -> None:
        for name, epoch, number, owner in self._state.rows(
            "SELECT name, epoch, number, owner FROM named_producers ORDER BY number"
        ):
            self._set(name, epoch, owner)
            self._number = number

    def epoch(self, name: bytes) -> int | None:
        return self._epochs.get(name)

    def owner(self, name: bytes) -> str:
        return self._owners.get(name, _NOBODY)

    def who(self, name: bytes, epoch: int) -> Identity:
        return _identity(name, epoch)

    def enter(self, name: bytes, epoch: int, owner: str = _NOBODY) -> Later[None]:
        known = self._epochs.get(name)
        owned = self._owners.get(name, _NOBODY)
        if known == epoch and (owned or not owner):
            return self._unsettled.get(name) or Later.now(None)
        if known is not None and epoch < known:
            raise ProducerFenced(f"epoch {epoch} of producer {name!r} is fenced by epoch {known}")
        self._state.check()
        self._forget(name)
        owner = owned or owner
        self._set(name, epoch, owner)
        self._number += 1
        self._state.write(_UPSERT, name, epoch, self._number, owner)
        self._make_room(owner)
        settled = self._state.settle()
        if not settled.ready:
            self._unsettled[name] = settled
            settled.then(lambda later: self._settled(name, later))
        return settled

    def _set(self, name: bytes, epoch: int, owner: str) -> None:
        self._epochs[name] = epoch
        if owner:
            self._owners[name] = owner
        self._by_owner.setdefault(owner, {})[name] = None

    def _forget(self, name: bytes) -> None:
        if self._epochs.pop(name, None) is None:
            return
        owner = self._owners.pop(name, _NOBODY)
        names = self._by_owner[owner]
        del names[name]
        if not names:
            del self._by_owner[owner]

    def _make_room(self, owner: str) -> None:
        """Forget the oldest name of an owner with too many, or of the one with most."""
        if owner == _NOBODY or len(self._by_owner[owner]) <= NAMES_OWNER_MAX:
            if len(self._epochs) <= NAMES_MAX:
                return
            owner = max(self._by_owner, key=lambda one: len(self._by_owner[one]))
        oldest = next(iter(self._by_owner[owner]))
        self._forget(oldest)
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

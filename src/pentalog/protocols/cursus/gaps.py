"""Batches of idempotent producers that came before those they follow.

Clients that send from several threads overtake themselves, and take a refused gap for their end.
So such a batch is kept for a moment: what it follows is most likely on its way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from pentalog.broker.principal_limits import PrincipalLimits
from pentalog.model.types import Partition
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.errors import REFUSALS, Refused

PATIENCE_MS: Final = 50
BATCHES_MAX: Final = 16
"""Kept of one producer in one partition."""
BATCHES_TOTAL_MAX: Final = 1_000
BYTES_TOTAL_MAX: Final = 32 << 20
_CHARGED_BYTES_MIN: Final = 32 << 10
"""Of the smallest batch: what is kept beside its bytes."""


class Violation(Refused):
    """A producer broke the order of its own messages."""


class Gap(Violation):
    """There are messages missing before those of a batch, and they may still come."""


class Producing(NamedTuple):
    """One producer's life in one partition."""

    at: Partition
    producer: bytes
    epoch: int


class _Kept(NamedTuple):
    first: int
    """Its first sequence number."""
    size: int
    owner: str
    call: Call
    store: Callable[[], None]
    """Stores it; raises `Gap` if it still comes too early."""


class Gaps:
    """What all connections of one door keep."""

    def __init__(self, share_percent: int) -> None:
        """One client may have `share_percent` of everything that is kept."""
        self._kept: dict[Producing, list[_Kept]] = {}
        self._under_way: dict[Producing, set[Call]] = {}
        self._opening: Counter[str] = Counter()
        """Compressed frames on a lane, by client: nothing says yet whose batches they hold."""
        self._batches = PrincipalLimits(
            "batches that came too early", BATCHES_TOTAL_MAX, share_percent=share_percent
        )
        self._bytes = PrincipalLimits(
            "bytes of batches that came too early", BYTES_TOTAL_MAX, share_percent=share_percent
        )

    def has_room(self, who: Producing, call: Call, size: int) -> bool:
        """Return whether a batch of this size can be kept; one client cannot take all room."""
        owner = call.session.context.access.owner
        return (
            len(self._kept.get(who, ())) < BATCHES_MAX
            and self._batches.fits(owner)
            and self._bytes.fits(owner, max(size, _CHARGED_BYTES_MIN))
        )

    def keep(
        self, who: Producing, first: int, size: int, call: Call, store: Callable[[], None]
    ) -> None:
        """Store the batch as soon as it is its turn, or answer that it never was."""
        owner = call.session.context.access.owner
        batch = _Kept(first, max(size, _CHARGED_BYTES_MIN), owner, call, store)
        self._add(who, batch)
        call.keep_place()
        self._await(who, batch)

    def _await(self, who: Producing, batch: _Kept) -> None:
        runtime = batch.call.session.context.runtime
        runtime.after(PATIENCE_MS, lambda: self._give_up(who, batch))

    def begin(self, who: Producing, call: Call) -> None:
        """Note a batch that takes several turns to be stored; those that follow it wait longer."""
        self._under_way.setdefault(who, set()).add(call)
        call.finished = lambda _: self._end(who, call)

    def begin_opening(self, owner: str) -> None:
        """Note a compressed frame; batches of its client that may follow it wait longer."""
        self._opening[owner] += 1

    def end_opening(self, owner: str) -> None:
        """Note that a compressed frame has been served, or abandoned."""
        self._opening[owner] -= 1
        if not self._opening[owner]:
            del self._opening[owner]

    def is_under_way(self, who: Producing) -> bool:
        """Return whether a batch of this producer is being stored."""
        return who in self._under_way

    def _end(self, who: Producing, call: Call) -> None:
        calls = self._under_way.get(who)
        if calls is not None:
            calls.discard(call)
            if not calls:
                del self._under_way[who]

    def filled(self, who: Producing, call: Call) -> None:
        """The producer's next messages have been stored: some of those kept may follow."""
        self._end(who, call)
        while kept := self._kept.get(who):
            batch = min(kept, key=lambda one: one.first)
            self._remove(who, batch)
            if batch.call.session.ended:
                continue
            try:
                batch.store()
            except Gap:
                self._add(who, batch)
                return
            except REFUSALS as refusal:
                batch.call.refuse(refusal)
            if self.is_under_way(who):
                return

    def _give_up(self, who: Producing, batch: _Kept) -> None:
        if batch not in self._kept.get(who, ()):
            return
        waits = self.is_under_way(who) or batch.owner in self._opening
        if waits and not batch.call.session.ended:
            self._await(who, batch)  # what it follows may be on a lane
            return
        self._remove(who, batch)
        if not batch.call.session.ended:
            batch.call.attempt(batch.store)

    def _add(self, who: Producing, batch: _Kept) -> None:
        self._kept.setdefault(who, []).append(batch)
        self._batches.add(batch.owner)
        self._bytes.add(batch.owner, batch.size)

    def _remove(self, who: Producing, batch: _Kept) -> None:
        kept = self._kept[who]
        kept.remove(batch)
        if not kept:
            del self._kept[who]
        self._batches.release(batch.owner)
        self._bytes.release(batch.owner, batch.size)

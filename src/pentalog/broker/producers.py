"""Ids for producers, never given twice: blocks of them are reserved on disk before use."""

from __future__ import annotations

import uuid
from collections import deque
from typing import Final

from pentalog.broker.state import State
from pentalog.model.errors import BrokerError, Overloaded
from pentalog.model.later import Later
from pentalog.model.types import Identity

BLOCK: Final = 1_000
RESERVE_BELOW: Final = 250
"""Reserve the next block when this few are left, so that nobody waits for the disk."""
WAITING_MAX: Final = 10_000


class LocalProducers:
    """Implements `port.Producers`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._next_unreserved = 0
        self._free: deque[range] = deque()
        self._free_count = 0
        self._reserving = False
        self._waiting: deque[Later[Identity]] = deque()

    def open(self) -> None:
        found = self._state.rows("SELECT next_id FROM producer_id_blocks WHERE lane = 0")
        # A copied log directory brings the ids of producers of another broker, and a power cut may
        # have taken the newest row if the page cache is good enough; a start drawn at random keeps
        # clear of ids in use.  Below 2**53, for clients that count in floating point.
        drawn = BLOCK * (1 + uuid.uuid4().int % (1 << 40))
        self._next_unreserved = int(found[0][0]) if found and self._state.synced else drawn
        self._reserve()

    def identify(self) -> Later[Identity]:
        if self._free:
            return Later.now(self._take())
        if len(self._waiting) >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} producers wait for an id: try again in a moment")
        later: Later[Identity] = Later()
        self._waiting.append(later)
        self._reserve()
        return later

    def _take(self) -> Identity:
        block = self._free[0]
        producer_id = block[0]
        if len(block) == 1:
            self._free.popleft()
        else:
            self._free[0] = block[1:]
        self._free_count -= 1
        if self._free_count < RESERVE_BELOW:
            self._reserve()
        return Identity(producer_id, 0)

    def _reserve(self) -> None:
        if self._reserving:
            return
        self._reserving = True
        start = self._next_unreserved
        end = start + BLOCK
        try:
            self._state.check()
        except BrokerError as refusal:
            self._refused(refusal)
            return
        self._state.write("INSERT OR REPLACE INTO producer_id_blocks VALUES (0, ?)", end)
        self._next_unreserved = end
        self._state.settle().then(lambda settled: self._reserved(range(start, end), settled))

    def _reserved(self, block: range, settled: Later[None]) -> None:
        try:
            _ = settled.value
        except BrokerError as refusal:
            # Maybe on the disk, maybe not: nobody gets these ids any more.
            self._refused(refusal)
            return
        self._reserving = False
        self._free.append(block)
        self._free_count += len(block)
        while self._waiting and self._free:
            self._waiting.popleft().fill(self._take())
        if self._waiting:
            self._reserve()

    def _refused(self, refusal: BrokerError) -> None:
        self._reserving = False
        waiting, self._waiting = self._waiting, deque()
        for later in waiting:
            later.refuse(refusal)

"""Aborted transactions of a partition, so that readers can be told what to hide.

File `<segment base>.txnindex`, Kafka's own, big-endian, one entry per abort marker in the segment:

    version i16 (0), producer id i64, first offset i64, last offset i64 (of the marker),
    last stable offset i64 (as it was when the marker was written)
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from pentalog.model.types import Aborted

_ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_BYTES: Final = _ENTRY.size
_BLOCK: Final = 512
"""Entries whose smallest first offset is known, so that a reader need not look at each."""


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    stable_offset: int


class AbortedTransactions:
    """In the order of their markers."""

    def __init__(self) -> None:
        self._entries: list[AbortedTransaction] = []
        self._last_offsets: list[int] = []
        self._block_firsts: list[int] = []
        """Smallest first offset of every `_BLOCK` entries; of some of the first ones only."""

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: AbortedTransaction) -> None:
        place = bisect_left(self._last_offsets, entry.last_offset)
        if place < len(self._last_offsets) and self._last_offsets[place] == entry.last_offset:
            return  # met again while recovering
        self._entries.insert(place, entry)
        self._last_offsets.insert(place, entry.last_offset)
        del self._block_firsts[place // _BLOCK :]

    def number_from(self, base: int) -> int:
        """How many have their marker at or behind `base`."""
        return len(self._last_offsets) - bisect_left(self._last_offsets, base)

    def marker_after(self, offset: int, count: int) -> int:
        """Offset of the marker that follows the first `count` from `offset` on; -1 if none does."""
        place = bisect_left(self._last_offsets, offset) + count
        return self._last_offsets[place] if place < len(self._last_offsets) else -1

    def between(self, offset: int, limit: int) -> list[Aborted]:
        """Those with records in `offset..limit`, by first offset."""
        found: list[Aborted] = []
        number = bisect_left(self._last_offsets, offset)
        while number < len(self._entries):
            # Under a transaction that is open for long, those behind it have no stable offset that
            # would end the search.
            if number % _BLOCK == 0 and self._block_first(number // _BLOCK) >= limit:
                number += _BLOCK
                continue
            entry = self._entries[number]
            if entry.first_offset < limit:
                found.append(Aborted(entry.producer_id, entry.first_offset))
            if limit <= entry.stable_offset <= entry.last_offset + 1:
                break  # whatever began before the limit had ended by this marker
            number += 1
        return sorted(found, key=lambda aborted: aborted.first_offset)

    def _block_first(self, block: int) -> int:
        """Smallest first offset of a block; of the last one, which still grows, none is kept."""
        firsts = self._block_firsts
        if block >= len(self._entries) // _BLOCK:
            return -1
        while len(firsts) <= block:
            start = len(firsts) * _BLOCK
            firsts.append(
                min(entry.first_offset for entry in self._entries[start : start + _BLOCK])
            )
        return firsts[block]

    def forget(self, before: int) -> None:
        """Give up those whose marker lies before the log, but for less than a block of them."""
        blocks = bisect_left(self._last_offsets, before) // _BLOCK
        del self._entries[: blocks * _BLOCK]
        del self._last_offsets[: blocks * _BLOCK]
        del self._block_firsts[:blocks]

    def from_offset(self, base: int, limit: int) -> list[AbortedTransaction]:
        """Those whose marker lies in `base..limit`."""
        low = bisect_left(self._last_offsets, base)
        return self._entries[low : bisect_left(self._last_offsets, limit)]


def pack(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(_ENTRY.pack(0, *entry) for entry in entries)


def unpack(data: bytes, base: int, limit: int) -> list[AbortedTransaction]:
    """Entries whose marker lies in `base..limit`; what a crash left in the file besides is not."""
    whole = len(data) - len(data) % _ENTRY.size
    found = [AbortedTransaction(*fields[1:]) for fields in _ENTRY.iter_unpack(data[:whole])]
    return [
        entry
        for entry in found
        if base <= entry.last_offset < limit and 0 <= entry.first_offset < entry.last_offset
    ]

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

    def number_from(self, base: int) -> int:
        """How many have their marker at or behind `base`."""
        return len(self._last_offsets) - bisect_left(self._last_offsets, base)

    def between(self, offset: int, limit: int) -> list[Aborted]:
        """Those with records in `offset..limit`, by first offset."""
        found: list[Aborted] = []
        for number in range(bisect_left(self._last_offsets, offset), len(self._entries)):
            entry = self._entries[number]
            if entry.first_offset < limit:
                found.append(Aborted(entry.producer_id, entry.first_offset))
            if limit <= entry.stable_offset <= entry.last_offset + 1:
                break  # whatever began before the limit had ended by this marker
        return sorted(found, key=lambda aborted: aborted.first_offset)

    def forget(self, before: int) -> None:
        gone = bisect_left(self._last_offsets, before)
        del self._entries[:gone]
        del self._last_offsets[:gone]

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

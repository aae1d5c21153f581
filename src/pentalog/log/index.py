"""Sparse indexes of one segment: offset to position, and timestamp to offset.

On disk both are Kafka's own, big-endian, entries in ascending order:

    .index       relative offset i32 (of the last record of a batch), position i32 (of that batch)
    .timeindex   timestamp i64 (largest so far), relative offset i32 (of the batch that brought it)

An index only says where to start looking: whoever uses an entry checks the batch it points at,
so a damaged index costs time, never truth.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Final

from pentalog.log.files import Files

_TIME_ENTRY: Final = struct.Struct(">qi")
_SWAP: Final = sys.byteorder == "little"


class OffsetIndex:
    """Offsets relative to the segment's base, and the positions of their batches."""

    __slots__ = ("offsets", "positions")

    entry_bytes: Final = 8

    def __init__(self) -> None:
        self.offsets = array("I")
        self.positions = array("I")

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def extend(self, packed: bytes) -> None:
        both = array("I")
        both.frombytes(packed)
        if _SWAP:
            both.byteswap()
        self.offsets.extend(both[0::2])
        self.positions.extend(both[1::2])

    def position_at(self, relative_offset: int) -> int:
        """A batch boundary at or before the batch that holds this offset."""
        found = bisect_right(self.offsets, relative_offset)
        return self.positions[found - 1] if found else 0

    def truncate(self, position: int) -> None:
        """Forget every entry for a batch at or behind `position`."""
        keep = bisect_left(self.positions, position)
        del self.offsets[keep:]
        del self.positions[keep:]

    def sound(self, size_bytes: int) -> bool:
        """Strictly ascending, and inside the segment."""
        offsets, positions = self.offsets, self.positions
        if not offsets:
            return True
        return (
            positions[-1] < size_bytes
            and all(map(_ascending, offsets, offsets[1:]))
            and all(map(_ascending, positions, positions[1:]))
        )

    def packed(self, start: int = 0) -> bytes:
        both = array("I", bytes(8 * (len(self.offsets) - start)))
        both[0::2] = self.offsets[start:]
        both[1::2] = self.positions[start:]
        if _SWAP:
            both.byteswap()
        return both.tobytes()


class TimeIndex:
    """Timestamps in ascending order and the offset from which each holds."""

    __slots__ = ("offsets", "timestamps")

    entry_bytes: Final = 12

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("I")

    def __len__(self) -> int:
        return len(self.timestamps)

    @property
    def newest(self) -> int:
        return self.timestamps[-1] if self.timestamps else -1

    def newest_offset(self, base_offset: int) -> int:
        return base_offset + self.offsets[-1] if self.offsets else -1

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Takes only what is newer than the last entry: the rest adds nothing."""
        if timestamp >= 0 and (not self.timestamps or timestamp > self.timestamps[-1]):
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def extend(self, packed: bytes) -> None:
        for timestamp, offset in _TIME_ENTRY.iter_unpack(packed):
            self.timestamps.append(timestamp)
            self.offsets.append(offset & 0xFFFFFFFF)

    def offset_before(self, timestamp: int) -> int:
        """Relative offset up to which every record is older than `timestamp`."""
        found = bisect_left(self.timestamps, timestamp)
        return self.offsets[found - 1] if found else 0

    def truncate(self, relative_offset: int) -> None:
        """Forget every entry at or behind an offset."""
        keep = bisect_left(self.offsets, relative_offset)
        del self.timestamps[keep:]
        del self.offsets[keep:]

    def sound(self) -> bool:
        return all(map(_ascending, self.timestamps, self.timestamps[1:])) and all(
            map(_ascending_or_equal, self.offsets, self.offsets[1:])
        )

    def packed(self, start: int = 0) -> bytes:
        pack = _TIME_ENTRY.pack
        return b"".join(map(pack, self.timestamps[start:], self.offsets[start:]))


def read_entries(files: Files, path: Path, entry_bytes: int, entries_max: int) -> bytes | None:
    """The entries in an index file; None if it is missing or cannot be right."""
    if not files.exists(path):
        return None
    file = files.open(path, writable=False)
    try:
        size = files.size(file)
        fits = size % entry_bytes == 0 and size // entry_bytes <= entries_max
        return files.read(file, size, 0) if fits else None
    finally:
        file.close()


def read_newest(files: Files, path: Path) -> int:
    """The newest timestamp in a time index file; -1 if it does not tell."""
    if not files.exists(path):
        return -1
    file = files.open(path, writable=False)
    try:
        size = files.size(file)
        if not size or size % TimeIndex.entry_bytes:
            return -1
        last = TimeIndex()
        last.extend(files.read(file, TimeIndex.entry_bytes, size - TimeIndex.entry_bytes))
        return last.newest
    finally:
        file.close()


def _ascending(one: int, other: int) -> bool:
    return one < other


def _ascending_or_equal(one: int, other: int) -> bool:
    return one <= other

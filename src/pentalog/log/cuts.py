"""Where a range of offsets can be cut into parts of about the same number of bytes.

An index file is behind the log it belongs to, and there may be none: what it does not cover is
walked from one batch's header to the next.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from pentalog import kernels
from pentalog.log.index import OffsetIndex
from pentalog.model.types import Offset


class Parts:
    """Parts that are filled one after the other, by whoever goes through the files in order."""

    def __init__(self, bytes_wanted: int, limit: Offset) -> None:
        """Nothing is cut at `limit` or behind it."""
        self.limit = limit
        self.found: list[tuple[Offset, int]] = []
        """(offset, bytes before it)"""
        self._bytes_wanted = bytes_wanted
        self._bytes = 0

    def reach(self, offset: Offset, size_bytes: int) -> None:
        """So many bytes more lie before this offset, which is a batch's first."""
        self._bytes += size_bytes
        if self._bytes >= self._bytes_wanted:
            self._close(offset)

    def hop(self, index: OffsetIndex, base: Offset, offset: Offset) -> tuple[int, Offset]:
        """Go from cut to cut by an index: (position, offset) where it or the range ends."""
        place = bisect_right(index.offsets, offset - base)
        position = index.positions[place - 1] if place else 0
        usable = bisect_right(index.offsets, self.limit - base - 2)
        while place < usable:
            found = bisect_left(index.positions, position + self._room(), place, usable)
            place = min(found, usable - 1)
            offset = base + index.offsets[place] + 1
            self.reach(offset, index.positions[place] - position)
            position = index.positions[place]
            place += 1
        return position, offset

    def walk(self, data: bytes, offset: Offset) -> tuple[int, Offset]:
        """Go from batch to batch: (bytes gone over, offset reached); 0 bytes if there is none.

        `data` begins at a batch; batches before `offset` count for nothing.  The last one may end
        behind the data.
        """
        position, stopped, _, _ = kernels.locate_offset(data, 0, len(data), offset)
        if position < 0:
            return stopped, offset
        while position < len(data):
            room = self._room()
            end, reached = kernels.fit_batches(data, position, len(data), room, self.limit)
            if end == position:
                at, size, _, reached = kernels.locate_offset(data, position, len(data), offset)
                if at != position or reached > self.limit:
                    break
                if self._bytes and size > room:
                    self._close(offset)
                    continue
                end = position + size
            self._bytes += end - position
            position, offset = end, reached
        return position, offset

    def _room(self) -> int:
        return max(0, self._bytes_wanted - self._bytes)

    def _close(self, offset: Offset) -> None:
        if offset < self.limit:
            self.found.append((offset, self._bytes))
        self._bytes = 0

"""Lazy inspection of a segment file: each window is checked when it is first read."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from pentalog.log.inspection import Care, Damage, inspect

if TYPE_CHECKING:
    from pentalog.log.segment import Segment

WINDOW_BYTES: Final = 4 << 20
"""Inspected at once: large enough to be quick, small enough not to hold up the others."""


class _Start(NamedTuple):
    position: int
    offset: int
    """Of the first batch there."""


class Windows:
    """Splits the part of a file that another process wrote at checked index entries."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        index = segment.index
        self._starts = starts = [_Start(0, segment.base_offset)]
        number = bisect_left(index.positions, WINDOW_BYTES)
        while number < len(index) and index.positions[number] < segment.trusted_from:
            header = segment.entry_header(index, number)
            if header is not None and header.base_offset >= starts[-1].offset:
                starts.append(_Start(index.positions[number], header.base_offset))
                number = bisect_left(index.positions, starts[-1].position + WINDOW_BYTES)
            else:
                number += 1
        self._inspected: set[int] = set()

    @property
    def complete(self) -> bool:
        return len(self._inspected) == len(self._starts)

    def inspect(self, position: int, end: int, *, patient: bool) -> None:
        """Inspect all windows that touch a range; raises Cold if that means waiting."""
        first = bisect_right(self._starts, position, key=_position_of) - 1
        for number in range(first, len(self._starts)):
            if self._starts[number].position >= end:
                break
            if number not in self._inspected:
                self._inspect(number, patient=patient)

    def _inspect(self, number: int, *, patient: bool) -> None:
        segment = self._segment
        start, low = self._starts[number]
        last = number + 1 == len(self._starts)
        if last:
            end, following = min(segment.size, segment.trusted_from), segment.next_offset
        else:
            end, following = self._starts[number + 1]
        found = inspect(
            segment.read(start, end - start, patient=patient),
            file_position=start,
            segment_base=segment.base_offset,
            next_offset=low,
            offset_max=following - 1,
            gaps=segment.gaps,
            care=Care(segment.index.positions),
        )
        fresh = list(found.damages)
        # A compacted segment may end before the next one begins; any other has lost its tail.
        short = end == segment.size and found.next_offset < following and not segment.gaps
        if found.end < end or short:
            fresh.append(Damage(found.end, end, found.next_offset, following))
        for damage in sorted({*fresh} - {*segment.damages}):
            segment.damages.append(damage)
            segment.report(damage)
        segment.damages.sort()
        self._inspected.add(number)


def _position_of(start: _Start) -> int:
    return start.position

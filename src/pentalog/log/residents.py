"""The sealed segments that keep their file open and their index in memory: not all of them."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pentalog.log.segment import Segment


class Residents:
    """Bounds how many sealed segments keep their file open and their index in memory."""

    def __init__(self, count_max: int = 512) -> None:
        self._count_max = count_max
        self._segments: OrderedDict[Segment, None] = OrderedDict()

    def touch(self, segment: Segment) -> None:
        self._segments[segment] = None
        self._segments.move_to_end(segment)
        if len(self._segments) > self._count_max:
            oldest, _ = self._segments.popitem(last=False)
            oldest.release()

    def leave(self, segment: Segment) -> None:
        self._segments.pop(segment, None)

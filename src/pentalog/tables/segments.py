"""Segment files of a data directory as an origin of records."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, TypeVar

from pentalog.log.reader import PIECE_BYTES, DirectoryReader, SegmentFeed, Swapping
from pentalog.model.internal import INTERNAL
from pentalog.model.pieces import Feed, Piece
from pentalog.model.types import Offset, Partition

T = TypeVar("T")

_SWAP_WAIT_S: Final = 30.0
_SWAP_PAUSE_S: Final = 0.02


def patiently(call: Callable[[], T]) -> T:
    """Ask again while a compacted segment is being put in place."""
    deadline = time.monotonic() + _SWAP_WAIT_S
    while True:
        try:
            return call()
        except Swapping:
            if time.monotonic() > deadline:
                raise
            time.sleep(_SWAP_PAUSE_S)


class PatientFeed:
    """Implements `Feed`."""

    def __init__(self, feed: SegmentFeed) -> None:
        self._feed = feed

    def read(self) -> Piece | None:
        return patiently(self._feed.read)

    def close(self) -> None:
        self._feed.close()


class DirectoryOrigin:
    """Implements `origins.Origin`."""

    def __init__(self, directory: str) -> None:
        self._reader = DirectoryReader(Path(directory))

    def topics(self) -> Mapping[str, Collection[int]]:
        found: dict[str, list[int]] = {}
        for at in self._reader.marks():
            found.setdefault(at.topic, []).append(at.index)
        return found

    def names(self) -> Collection[str]:
        return [name for name in self.topics() if name not in INTERNAL]

    def starts(self, at: Collection[Partition]) -> dict[Partition, Offset]:
        marks = self._reader.marks()
        return {where: marks[where].start for where in at}

    def ends(self, at: Collection[Partition]) -> dict[Partition, Offset]:
        marks = self._reader.marks()
        return {where: marks[where].stable for where in at}

    def at_time(self, asked: Mapping[Partition, int]) -> dict[Partition, Offset]:
        ends = self.ends(asked.keys())
        return {at: self._at_time(at, when, ends[at]) for at, when in asked.items()}

    def _at_time(self, at: Partition, timestamp_ms: int, limit: Offset) -> Offset:
        partition = self._reader.partition(at)
        return patiently(lambda: partition.offset_at(timestamp_ms, limit=limit))

    def feed(self, at: Partition, low: Offset, high: Offset) -> Feed:
        partition = self._reader.partition(at)
        return PatientFeed(SegmentFeed(partition, low, high, bytes_max=PIECE_BYTES))

    def cuts(self, at: Partition, low: Offset, high: Offset, bytes_wanted: int) -> list[Offset]:
        partition = self._reader.partition(at)
        found = patiently(lambda: partition.cuts(low, high, bytes_wanted))
        return [offset for offset, _ in found]

    def close(self) -> None:
        """Nothing is held between calls."""

"""Records of a topic a page at a time: the newest, those from an offset or a time on, and live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pentalog.clients.kafka import EARLIEST, LATEST, Cluster, FetchFeed
from pentalog.console.records import Row, rows_in
from pentalog.model.pieces import Gone
from pentalog.model.types import Offset, Partition

PAGE_ROWS: Final = 50
LIVE_ROWS_MAX: Final = 200
"""Records of one partition shown at a time while a topic is followed."""

_PIECE_BYTES: Final = 1 << 20


def places(cluster: Cluster, topic: str, partition: int | None = None) -> list[Partition]:
    """All partitions of a topic, or the one that is named."""
    found = sorted(cluster.topic(topic).partitions)
    return [Partition(topic, index) for index in found if partition in (None, index)]


def newest(cluster: Cluster, at: Sequence[Partition], count: int = PAGE_ROWS) -> list[Row]:
    """The last records of these partitions, newest first."""
    if not at:
        return []
    starts = cluster.offsets(dict.fromkeys(at, EARLIEST))
    ends = cluster.offsets(dict.fromkeys(at, LATEST))
    rows: list[Row] = []
    for one in at:
        rows += _last(cluster, one, starts[one], ends[one], count)
    rows.sort(key=lambda row: (row.timestamp_ms, row.offset), reverse=True)
    return rows[:count]


def _last(cluster: Cluster, at: Partition, start: Offset, end: Offset, count: int) -> Iterator[Row]:
    """Looks further back where compaction or transactions have left gaps."""
    low, high = end, end
    step = count
    rows: list[Row] = []
    while low > start and len(rows) < count:
        low = max(start, high - step)
        rows = [*read(cluster, at, low, high), *rows]
        high, step = low, 4 * step
    yield from rows[-count:]


def read(
    cluster: Cluster, at: Partition, low: Offset, high: Offset, count: int | None = None
) -> Iterator[Row]:
    """Records in `low..high`, in order; at most `count` of them."""
    feed = FetchFeed(cluster, at, low, high, bytes_max=_PIECE_BYTES)
    given = 0
    try:
        while True:
            try:
                piece = feed.read()
            except Gone:
                continue
            if piece is None:
                return
            for row in rows_in(at, piece, low, high):
                yield row
                given += 1
                if given == count:
                    return
    finally:
        feed.close()


def from_offset(
    cluster: Cluster, at: Sequence[Partition], offset: Offset, count: int = PAGE_ROWS
) -> list[Row]:
    """Records from an offset on, one partition behind another."""
    return _onwards(cluster, dict.fromkeys(at, offset), count)


def from_time(
    cluster: Cluster, at: Sequence[Partition], timestamp_ms: int, count: int = PAGE_ROWS
) -> list[Row]:
    """Records from a time on, oldest first."""
    found = cluster.offsets(dict.fromkeys(at, timestamp_ms)) if at else {}
    rows = _onwards(cluster, {one: low for one, low in found.items() if low >= 0}, count)
    rows.sort(key=lambda row: (row.timestamp_ms, row.at, row.offset))
    return rows[:count]


def _onwards(cluster: Cluster, lows: dict[Partition, Offset], count: int) -> list[Row]:
    if not lows:
        return []
    starts = cluster.offsets(dict.fromkeys(lows, EARLIEST))
    ends = cluster.offsets(dict.fromkeys(lows, LATEST))
    rows: list[Row] = []
    for at, low in lows.items():
        low = min(max(low, starts[at]), ends[at])
        rows += read(cluster, at, low, ends[at], count)
    return rows


def one(cluster: Cluster, at: Partition, offset: Offset) -> Row | None:
    """One record in full; None if it is no longer there."""
    return next(read(cluster, at, offset, offset + 1), None)


class Tail:
    """Follows a topic from its end, on connections of its own."""

    def __init__(self, cluster: Cluster, topic: str, partition: int | None = None) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._cursors: dict[Partition, Offset] = {}
        self.skipped = 0
        """Records that came faster than anybody could read them."""

    def step(self) -> list[Row]:
        """What has come since the last call; the first one only finds the end."""
        first = not self._cursors
        at = places(self._cluster, self._topic, self._partition)
        ends = self._cluster.offsets(dict.fromkeys(at, LATEST))
        rows: list[Row] = []
        for one, end in ends.items():
            # A partition that was added meanwhile is new from its beginning on.
            cursor = self._cursors.get(one, end if first else 0)
            low = max(cursor, end - LIVE_ROWS_MAX)
            self.skipped += max(0, low - cursor)
            if low < end:
                rows += read(self._cluster, one, low, end)
            self._cursors[one] = max(cursor, end)
        rows.sort(key=lambda row: (row.timestamp_ms, row.at, row.offset))
        return rows

    def close(self) -> None:
        self._cluster.close()

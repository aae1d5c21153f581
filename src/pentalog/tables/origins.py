"""Where records come from: segment files, or a Kafka door; the same rows either way."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final, Protocol

from pentalog.clients.kafka import EARLIEST, LATEST, Cluster, FetchFeed
from pentalog.model.internal import INTERNAL
from pentalog.model.pieces import Feed, Gone
from pentalog.model.types import Offset, Partition
from pentalog.tables.options import OptionRefused, SourceOptions

PIECE_BYTES: Final = 4 << 20

_PROBE_BYTES: Final = 64 << 10
_PROBE_FROM: Final = 5_000
"""Ranges of fewer offsets are not worth a look at how large their records are."""
_RECORD_BYTES: Final = 200
"""What a record is taken to have before one has been looked at."""


class Origin(Protocol):
    def topics(self) -> Mapping[str, Collection[int]]:
        """Every topic that may be read, and its partitions."""

    def names(self) -> Collection[str]:
        """Every topic there is."""

    def starts(self, at: Collection[Partition]) -> dict[Partition, Offset]: ...
    def ends(self, at: Collection[Partition]) -> dict[Partition, Offset]:
        """The stable end of each: everything before it is durable and decided."""

    def at_time(self, asked: Mapping[Partition, int]) -> dict[Partition, Offset]:
        """The first offset whose record is that new or newer, the end if there is none."""

    def feed(self, at: Partition, low: Offset, high: Offset) -> Feed: ...
    def cuts(self, at: Partition, low: Offset, high: Offset, bytes_wanted: int) -> list[Offset]:
        """Where to cut a range into parts of about this size."""

    def close(self) -> None: ...


def open_origin(options: SourceOptions) -> Origin:
    """Segment files if their directory is named, else the Kafka door."""
    if not options.data:
        return ClusterOrigin(options)
    # What reads files is much to import, and every query has a process of its own that may not.
    from pentalog.tables.segments import DirectoryOrigin

    return DirectoryOrigin(options.data)


def chosen_partitions(origin: Origin, options: SourceOptions) -> list[Partition]:
    """The partitions that the options name; refused if a topic does not exist."""
    there = origin.topics()
    if options.pattern:
        # The broker's own topics are read by those only who name them.
        named = (name for name in there if re.fullmatch(options.pattern, name))
        names = sorted(name for name in named if name not in INTERNAL)
    else:
        names = list(options.topics)
        missing = [name for name in names if name not in there]
        if missing:
            known = ", ".join(sorted(origin.names())[:20]) or "none"
            raise OptionRefused(f"topic {missing[0]!r} does not exist; there are: {known}")
    return [Partition(name, index) for name in names for index in sorted(there[name])]


class ClusterOrigin:
    """Implements `Origin` by asking the brokers of a cluster."""

    def __init__(self, options: SourceOptions) -> None:
        self._topics = options.topics
        self._cluster = Cluster(options.servers, options.client)

    def topics(self) -> Mapping[str, Collection[int]]:
        names = list(self._topics) or None
        return {topic.name: list(topic.partitions) for topic in self._cluster.topics(names)}

    def names(self) -> Collection[str]:
        return [topic.name for topic in self._cluster.topics()]

    def starts(self, at: Collection[Partition]) -> dict[Partition, Offset]:
        return self._cluster.offsets(dict.fromkeys(at, EARLIEST)) if at else {}

    def ends(self, at: Collection[Partition]) -> dict[Partition, Offset]:
        return self._cluster.offsets(dict.fromkeys(at, LATEST)) if at else {}

    def at_time(self, asked: Mapping[Partition, int]) -> dict[Partition, Offset]:
        if not asked:
            return {}
        found = self._cluster.offsets(asked)
        ends = self.ends(asked.keys())
        return {at: ends[at] if offset < 0 else offset for at, offset in found.items()}

    def feed(self, at: Partition, low: Offset, high: Offset) -> Feed:
        return FetchFeed(self._cluster, at, low, high, bytes_max=PIECE_BYTES)

    def cuts(self, at: Partition, low: Offset, high: Offset, bytes_wanted: int) -> list[Offset]:
        """By the size of the records at the beginning: a broker does not tell more."""
        size = self._record_bytes(at, low, high) if high - low > _PROBE_FROM else _RECORD_BYTES
        step = max(1, int(bytes_wanted / size))
        return list(range(low + step, high, step))

    def _record_bytes(self, at: Partition, low: Offset, high: Offset) -> float:
        feed = FetchFeed(self._cluster, at, low, high, bytes_max=_PROBE_BYTES)
        try:
            piece = feed.read()
        except Gone:
            return _RECORD_BYTES  # whoever reads it says so
        finally:
            feed.close()
        if piece is None or piece.next_offset <= low:
            return _RECORD_BYTES
        return max(1.0, len(piece.data) / (piece.next_offset - low))

    def close(self) -> None:
        self._cluster.close()

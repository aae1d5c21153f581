"""Counters as plain numbers: adding to one costs what adding to an integer costs."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

SECONDS_BOUNDS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip
"""Upper bounds of the classes in which durations are counted."""


class Histogram:
    """How often something took how long."""

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS_BOUNDS) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(SECONDS_BOUNDS, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Each bound, and how many took no longer."""
        found = []
        total = 0
        for bound, count in zip(SECONDS_BOUNDS, self._counts, strict=False):
            total += count
            found.append((bound, total))
        return found


@dataclass(slots=True)
class Traffic:
    """What passed through one connection, or through all of a door that are gone."""

    received_bytes: int = 0
    sent_bytes: int = 0
    requests: int = 0
    request_errors: int = 0
    received_records: int = 0
    sent_records: int = 0

    def add(self, other: Traffic) -> None:
        self.received_bytes += other.received_bytes
        self.sent_bytes += other.sent_bytes
        self.requests += other.requests
        self.request_errors += other.request_errors
        self.received_records += other.received_records
        self.sent_records += other.sent_records


@dataclass(slots=True)
class Metrics(Traffic):
    """What the broker counts since it started.  Gauges are asked of their owners instead.

    Its traffic is that of connections which are gone: each counts its own while it lives.
    """

    connections_opened: int = 0
    connections_closed: int = 0
    connections_refused: int = 0
    appended_batches: int = 0
    appended_records: int = 0
    appended_bytes: int = 0
    duplicate_batches: int = 0
    read_bytes: int = 0
    cold_reads: int = 0
    syncs: int = 0
    journal_bytes: int = 0
    damaged_batches: int = 0
    unreadable_batches: int = 0
    """Skipped by a reader: their sums are right, but their records are malformed."""
    unshown_records: int = 0
    """Skipped by readers whose protocol cannot hold them."""
    segments_deleted: int = 0
    segments_deleted_bytes: int = 0
    segments_deleted_unread: int = 0
    retention_held_bytes: int = 0
    """At present, not in all."""
    retention_walks_in_vain: int = 0
    """Looked at every partition and found nothing to delete."""
    compactions: int = 0
    segments_compacted: int = 0
    segments_compacted_bytes: int = 0
    """Of what took their place."""
    segments_not_compacted: int = 0
    """Looked through, and left as they were for the next time."""
    records_compacted: int = 0
    """Dropped because a newer one has their key."""
    damaged_checkpoints: int = 0
    journal_entries_rejected: int = 0
    throttles: int = 0
    """Times a peer was not read from for a while because of a quota."""
    subscriptions_opened: int = 0
    subscriptions_expired: int = 0
    deliveries: int = 0
    redeliveries: int = 0
    acknowledgements: int = 0
    dead_letters: int = 0
    sync_seconds: Histogram = field(default_factory=Histogram)
    loop_delay_seconds: Histogram = field(default_factory=Histogram)


LABEL_CHARACTERS_MAX: Final = 1000
"""What has a longer name is not told of one by one: a line would be endless."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def label_value(text: str) -> str:
    """A name as it stands in Prometheus' text; what has no place in a line as its number."""
    value = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    if value.isprintable():
        return value
    return _CONTROL.sub(lambda found: f"\\\\x{ord(found[0]):02x}", value)

"""Counters as plain numbers: adding to one costs what adding to an integer costs."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Metrics:
    """What the broker counts since it started.  Gauges are asked of their owners instead."""

    connections_opened: int = 0
    connections_closed: int = 0
    connections_refused: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    requests: int = 0
    request_errors: int = 0
    appended_batches: int = 0
    appended_records: int = 0
    appended_bytes: int = 0
    duplicate_batches: int = 0
    read_bytes: int = 0
    cold_reads: int = 0
    syncs: int = 0
    journal_bytes: int = 0
    damaged_batches: int = 0
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
    subscriptions_opened: int = 0
    subscriptions_expired: int = 0
    deliveries: int = 0
    redeliveries: int = 0
    acknowledgements: int = 0
    dead_letters: int = 0

    def all(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

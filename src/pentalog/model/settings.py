"""What a topic's settings mean, typed; their names and ranges live in `broker/settings.py`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class TimestampType(Enum):
    CREATE = "CreateTime"
    APPEND = "LogAppendTime"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How one topic's partitions are kept.  -1 means no limit."""

    cleanup_delete: bool = True
    cleanup_compact: bool = False
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    message_bytes_max: int = 1048588
    """Largest batch accepted, framing included."""
    timestamp_type: TimestampType = TimestampType.CREATE
    timestamp_before_ms_max: int = (1 << 63) - 1
    timestamp_after_ms_max: int = 3600 * 1000
    compression: str = "producer"
    """producer, uncompressed, gzip, snappy, lz4 or zstd."""
    gzip_level: int = -1
    lz4_level: int = 9
    zstd_level: int = 3
    compaction_lag_ms_min: int = 0
    compaction_lag_ms_max: int = (1 << 63) - 1
    delete_retention_ms: int = 24 * 3600 * 1000
    cleanable_dirty_ratio_min: float = 0.5
    file_delete_delay_ms: int = 60_000
    flush_messages: int = (1 << 63) - 1
    """Sync after this many records, whoever asked for it."""
    flush_ms: int = (1 << 63) - 1
    insync_replicas_min: int = 1
    delivery_attempts_max: int = 3
    """Deliveries on lease before a record is set aside."""
    delivery_lease_ms: int = 100
    """Time for the first answer; doubles with each attempt."""
    delivery_ttl_ms: int = -1
    delivery_backlog_max: int = -1
    derived_from: str = ""
    """The topic this one is derived from; empty: none."""
    derived_smart_module: str = ""
    derived_parameters: str = ""

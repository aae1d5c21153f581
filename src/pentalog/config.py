"""Every setting of a broker, in one frozen value.

The order of sources is: default, TOML file, environment (`PENTALOG_` and the name in capitals),
flags; later ones win.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Listen:
    """One `NAME=HOST:PORT`; port 0 picks a free one."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    data: Path = Path("pentalog-data")
    """Directory that holds everything the broker keeps."""
    listen: tuple[Listen, ...] = ()
    """Listeners to open; none: every door on its own port, on 127.0.0.1."""
    advertise: Mapping[str, Listen] = field(default_factory=dict)
    """What metadata tells clients, by listener name; absent: the address they connected to."""
    node_id: int = 0
    flush_interval_ms: int = 100
    """Longest time a record may wait for the disk; 0 declares the page cache good enough."""
    journal_bytes: int = 64 << 20
    """Size of the journal through which acknowledged writes reach the disk."""
    journal_batch_bytes_max: int = 256 << 10
    """Larger writes sync their own file instead of passing through the journal."""
    auto_create_topics: bool = True
    default_partitions: int = 1
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    """Topic settings by Kafka's names, for topics that do not set them."""
    frame_bytes_max: int = 100 << 20
    connections_max: int = 10_000
    connections_per_address_max: int = 10_000
    connection_reply_bytes_max: int = 8 << 20
    """Replies a connection may have queued in memory before reading from it stops."""
    receive_bytes_max: int = 1 << 30
    """Receive buffers of all connections together."""
    housekeeping_interval_ms: int = 30_000
    """How often retention and compaction look for work."""
    shutdown_timeout_ms: int = 10_000
    producer_expiration_ms: int = 24 * 3600 * 1000
    """A producer silent for this long on a partition is forgotten there."""

"""A small client of the RustLog protocol, in both of its dialects, blocking or for asyncio."""

from __future__ import annotations

from pentalog.clients.patience import CircuitBreaker, CircuitOpen, Patience
from pentalog.clients.reconnection import ConnectionLost
from pentalog.clients.rustlog.asynchronous import AsyncRustLogClient
from pentalog.clients.rustlog.blocking import RustLogClient
from pentalog.clients.rustlog.calls import (
    ClientError,
    Fetched,
    FetchedRecord,
    PartitionSummary,
    Produced,
    RustLogError,
    ServerError,
    TopicSummary,
)

__all__ = [
    "AsyncRustLogClient",
    "CircuitBreaker",
    "CircuitOpen",
    "ClientError",
    "ConnectionLost",
    "Fetched",
    "FetchedRecord",
    "PartitionSummary",
    "Patience",
    "Produced",
    "RustLogClient",
    "RustLogError",
    "ServerError",
    "TopicSummary",
]

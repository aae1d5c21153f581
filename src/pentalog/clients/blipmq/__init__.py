"""A small client of the BlipMQ protocol, blocking or for asyncio."""

from __future__ import annotations

from pentalog.clients.blipmq.asynchronous import AsyncBlipmqClient
from pentalog.clients.blipmq.blocking import BlipmqClient
from pentalog.clients.blipmq.exchanges import (
    BlipmqError,
    ClientError,
    Delivery,
    ServerError,
)
from pentalog.clients.patience import CircuitBreaker, CircuitOpen, Patience
from pentalog.clients.reconnection import ConnectionLost

__all__ = [
    "AsyncBlipmqClient",
    "BlipmqClient",
    "BlipmqError",
    "CircuitBreaker",
    "CircuitOpen",
    "ClientError",
    "ConnectionLost",
    "Delivery",
    "Patience",
    "ServerError",
]

"""What the connections of one listener share, and the states a connection can be in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Final

from pentalog.broker.port import Broker
from pentalog.broker.security import Attempts, Audit
from pentalog.config import Config, Listen
from pentalog.metrics import Metrics
from pentalog.runtime import Runtime, Slices, Turns
from pentalog.server.limits import Limits
from pentalog.server.observation import LocalObservation
from pentalog.session import Address, Endpoint

if TYPE_CHECKING:
    from pentalog.server.connection import Connection

SERVED_PER_TURN: Final = 64
"""Reads that are served in one turn of the loop, of all connections together."""
COSTLY_PER_TURN: Final = 16
"""The same, for costly reads."""
COSTLY_BUDGET_S: Final = 0.002
"""Time for costly reads in one turn, beside what other reads have (`runtime.TURN_BUDGET_S`)."""


class Pause(IntFlag):
    """Why a connection is not read from."""

    FULL = 1
    TURN_OVER = 2
    """What was received waits to be served."""
    MEMORY = 4
    STOPPING = 8
    MUCH_READ = 16
    """Until the next turn; apart from `TURN_OVER`, because a connection can wait for both."""


class Rank(IntEnum):
    """Which connections are closed first when another client needs their place."""

    ENDING = 0
    STRANGER = 1
    IDLE = 2
    BUSY = 3


@dataclass(frozen=True, slots=True)
class Door:
    """What the connections of one listener share."""

    loop: asyncio.AbstractEventLoop
    endpoint: Endpoint
    listener: Listen
    broker: Broker
    runtime: Runtime
    config: Config
    metrics: Metrics
    limits: Limits
    advertised: Callable[[str, Listen, str], Address]
    """Endpoint name, listener and the host this client reached us at, to the address it is told."""
    audit: Audit
    attempts: Attempts
    connections: set[Connection]
    turns: Turns
    costly_turns: Turns
    """Shorter ones, for costly reads, so that small requests do not wait for them."""
    slices: Slices
    observation: LocalObservation

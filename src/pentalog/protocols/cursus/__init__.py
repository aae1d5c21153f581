"""Cursus' wire protocol: its published document, and what its released clients speak."""

from __future__ import annotations

from typing import Final

from pentalog.protocols.cursus.errors import ERROR_CODES
from pentalog.protocols.cursus.inspection import CursusInspector
from pentalog.protocols.cursus.session import CursusSession
from pentalog.session import Endpoint, WireProtocol

PROTOCOL: Final = WireProtocol(
    name="cursus",
    endpoints=(
        Endpoint(
            "cursus",
            9000,
            CursusSession,
            in_order=True,
            in_flight_max=1000,
            inspector=CursusInspector,
            demands=frozenset({"auth"}),
            login_bytes_max=1 << 20,  # a command may carry its login and a message
            closes_idle=True,
            asks_first=True,
        ),
    ),
    error_codes=ERROR_CODES,
)

"""The protocols this broker speaks: one line each."""

from __future__ import annotations

from typing import Final

from pentalog.protocols import blipmq, cursus, fluvio, http, kafka, rustlog
from pentalog.session import Endpoint, WireProtocol

PROTOCOLS: Final[tuple[WireProtocol, ...]] = (
    kafka.PROTOCOL,
    fluvio.PROTOCOL,
    cursus.PROTOCOL,
    rustlog.PROTOCOL,
    blipmq.PROTOCOL,
)

OBSERVERS: Final[tuple[Endpoint, ...]] = (http.ENDPOINT,)
"""Ports for those who look at the broker and bring no records."""

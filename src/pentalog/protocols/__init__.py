"""The protocols this broker speaks: one line each."""

from __future__ import annotations

from typing import Final

from pentalog.protocols import blipmq, cursus, fluvio, kafka, rustlog
from pentalog.session import WireProtocol

PROTOCOLS: Final[tuple[WireProtocol, ...]] = (
    kafka.PROTOCOL,
    fluvio.PROTOCOL,
    cursus.PROTOCOL,
    rustlog.PROTOCOL,
    blipmq.PROTOCOL,
)

"""The protocols this broker speaks: one line each."""

from __future__ import annotations

from typing import Final

from pentalog.protocols import kafka
from pentalog.session import WireProtocol

PROTOCOLS: Final[tuple[WireProtocol, ...]] = (kafka.PROTOCOL,)

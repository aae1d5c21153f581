"""BlipMQ's binary protocol, as its document and its daemon speak it."""

from __future__ import annotations

from typing import Final

from pentalog.protocols.blipmq.errors import ERROR_CODES
from pentalog.protocols.blipmq.inspection import BlipmqInspector
from pentalog.protocols.blipmq.session import BlipmqSession
from pentalog.session import Endpoint, WireProtocol

PROTOCOL: Final = WireProtocol(
    name="blipmq",
    endpoints=(
        Endpoint(
            "blipmq",
            5555,
            BlipmqSession,
            in_order=True,
            in_flight_max=1000,
            inspector=BlipmqInspector,
            asks_first=True,
            authenticates=True,
        ),
    ),
    error_codes=ERROR_CODES,
)

"""RustLog's wire protocol: the document's JSON and the original's packed fields, on one port."""

from __future__ import annotations

from typing import Final

from pentalog.protocols.rustlog.errors import ERROR_CODES
from pentalog.protocols.rustlog.frames import recognises
from pentalog.protocols.rustlog.inspection import RustLogInspector
from pentalog.protocols.rustlog.session import RustLogSession
from pentalog.session import Endpoint, WireProtocol

PROTOCOL: Final = WireProtocol(
    name="rustlog",
    endpoints=(
        Endpoint(
            "rustlog",
            9192,
            RustLogSession,
            in_order=True,
            in_flight_max=1000,
            recognises=recognises,
            inspector=RustLogInspector,
            asks_first=True,
        ),
    ),
    error_codes=ERROR_CODES,
)

"""HTTP, for those who look at a broker: metrics, health, connections and their frames."""

from __future__ import annotations

from typing import Final

from pentalog.protocols.http.session import HttpSession
from pentalog.session import Endpoint

ENDPOINT: Final = Endpoint(
    "http",
    9644,
    HttpSession,
    in_order=True,
    in_flight_max=100,
    asks_first=True,
    closes_idle=True,
)

"""Fluvio's wire protocol, as its client of 0.17 and 0.18 speaks it: a controller and an SPU."""

from __future__ import annotations

from functools import partial
from typing import Final

from pentalog.protocols.fluvio.errors import ERROR_CODES
from pentalog.protocols.fluvio.inspection import FluvioInspector
from pentalog.protocols.fluvio.sc import ScSession
from pentalog.protocols.fluvio.spu import SpuSession
from pentalog.session import Endpoint, WireProtocol

PROTOCOL: Final = WireProtocol(
    name="fluvio",
    endpoints=(
        Endpoint(
            "fluvio-sc",
            9003,
            ScSession,
            in_order=False,
            in_flight_max=1000,
            door="fluvio",
            inspector=partial(FluvioInspector, ScSession.apis),
            asks_first=True,
        ),
        Endpoint(
            "fluvio-spu",
            9010,
            SpuSession,
            in_order=False,
            in_flight_max=1000,
            door="fluvio",
            inspector=partial(FluvioInspector, SpuSession.apis),
            asks_first=True,
        ),
    ),
    error_codes=ERROR_CODES,
)

"""Kafka's wire protocol, as Apache Kafka 4.3.1 speaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pentalog.protocols.kafka.errors import ERROR_CODES
from pentalog.protocols.kafka.frames import costly
from pentalog.protocols.kafka.inspection import KafkaInspector
from pentalog.protocols.kafka.session import KafkaSession
from pentalog.protocols.kafka.signpost import SignpostSession
from pentalog.session import Endpoint, WireProtocol

PROTOCOL: Final = WireProtocol(
    name="kafka",
    endpoints=(
        Endpoint(
            "kafka",
            9092,
            KafkaSession,
            in_order=True,
            in_flight_max=1000,
            costly=costly,
            inspector=KafkaInspector,
            demands=frozenset({"sasl"}),
            closes_idle=True,
        ),
    ),
    error_codes=ERROR_CODES,
)
SIGNPOST: Final = replace(
    PROTOCOL.endpoints[0], open=SignpostSession, in_flight_max=4, asks_first=True
)
"""The same port of a gateway, whose clients go on to the cluster; its answers may be large."""

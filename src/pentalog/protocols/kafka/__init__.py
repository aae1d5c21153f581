"""Kafka's wire protocol, as Apache Kafka 4.3.1 speaks it."""

from __future__ import annotations

from typing import Final

from pentalog.protocols.kafka.errors import ERROR_CODES
from pentalog.protocols.kafka.frames import costly
from pentalog.protocols.kafka.inspection import KafkaInspector
from pentalog.protocols.kafka.session import KafkaSession
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
        ),
    ),
    error_codes=ERROR_CODES,
)

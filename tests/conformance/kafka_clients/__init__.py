"""Published Kafka clients behind one small face, so that every test runs with each of them.

The clients are used unmodified.  What a client cannot express is said by `expressible`, never
hidden: a test drops those records for that writer only.
"""

from __future__ import annotations

from kafka_clients.aio import Aiokafka
from kafka_clients.confluent import Confluent
from kafka_clients.event import CODECS, Client, Event, Read
from kafka_clients.kafka_python import KafkaPython
from kafka_clients.kcat import Kcat

CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), Aiokafka(), Kcat())

__all__ = ["CLIENTS", "CODECS", "Client", "Event", "Read"]

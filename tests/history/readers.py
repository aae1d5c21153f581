"""Consumers that write down every record they are given."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from tests.history.checker import Reading, Received

_SETTINGS: dict[str, Any] = {
    "group.id": "history",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "check.crcs": True,
    "fetch.wait.max.ms": 50,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "socket.timeout.ms": 3000,
    "log_level": 0,
}


class Reader(threading.Thread):
    """Reads along while things happen; now and then it starts again from the beginning."""

    def __init__(
        self, address: str, topic: str, partitions: int, name: str, seed: int, *, committed: bool
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.reading = Reading(name, committed)
        self._address = address
        self._places = [TopicPartition(topic, i, OFFSET_BEGINNING) for i in range(partitions)]
        self._choice = random.Random(seed)
        self._stopping = threading.Event()

    def finish(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.is_set():
            self._session(self._choice.uniform(0.5, 4.0))

    def read_all(self, patience_s: float) -> None:
        """From the beginning to where every partition ends now, in this thread."""
        ended: set[int] = set()
        session = self._begun()
        consumer = self._consumer()
        deadline = time.monotonic() + patience_s
        try:
            while len(ended) < len(self._places) and time.monotonic() < deadline:
                for message in consumer.consume(500, 0.2):
                    error = message.error()
                    if error is None:
                        session.append(_received(message))
                        ended.discard(message.partition())
                    elif error.code() == KafkaError._PARTITION_EOF:
                        ended.add(message.partition() or 0)
        finally:
            consumer.close()
        self.reading.complete = len(ended) == len(self._places)

    def _session(self, duration_s: float) -> None:
        session = self._begun()
        consumer = self._consumer()
        deadline = time.monotonic() + duration_s
        try:
            while not self._stopping.is_set() and time.monotonic() < deadline:
                for message in consumer.consume(200, 0.1):
                    if message.error() is None:
                        session.append(_received(message))
        finally:
            consumer.close()

    def _begun(self) -> list[Received]:
        session: list[Received] = []
        self.reading.sessions.append(session)
        return session

    def _consumer(self) -> Consumer:
        level = "read_committed" if self.reading.committed_only else "read_uncommitted"
        consumer = Consumer(
            {"bootstrap.servers": self._address, "isolation.level": level, **_SETTINGS}
        )
        consumer.assign(self._places)
        return consumer


def _received(message: Any) -> Received:
    return Received(message.partition(), message.offset(), message.value().decode())

"""kafka-python: the protocol in pure Python."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

with warnings.catch_warnings():
    # It reads its schemas in a way Python 3.11 calls deprecated; ours to bear, not to fix.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.admin import KafkaAdminClient, NewTopic

from kafka_clients.event import TIMEOUT_S, Event, Read


class KafkaPython:
    name = "kafka-python"

    def missing(self) -> str:
        """It brings no codecs of its own but takes these packages when they are there."""
        absent = [name for name in ("snappy", "lz4", "zstandard") if find_spec(name) is None]
        return f"kafka-python lacks {', '.join(absent)} from PyPI" if absent else ""

    def expressible(self, event: Event) -> Event | None:
        # Its producer refuses header values of None, and records with neither key nor value.
        if event.key is None and event.value is None:
            return None
        return None if any(value is None for _, value in event.headers) else event

    def create_topic(
        self, address: str, topic: str, *, partitions: int, settings: Mapping[str, str]
    ) -> None:
        with admin(address) as client:
            client.create_topics(
                [
                    NewTopic(
                        name=topic,
                        num_partitions=partitions,
                        replication_factor=1,
                        topic_configs=dict(settings),
                    )
                ]
            )

    def write(
        self, address: str, topic: str, events: Sequence[Event], *, codec: str, partition: int
    ) -> None:
        write(
            address,
            topic,
            events,
            {"compression_type": None if codec == "none" else codec},
            partition,
        )

    def read(self, address: str, topic: str, *, partition: int, count: int) -> list[Read]:
        at = kafka.TopicPartition(topic, partition)
        found: list[Read] = []
        with consumer(address) as client:
            client.assign([at])
            client.seek_to_beginning(at)
            deadline = time.monotonic() + TIMEOUT_S
            while len(found) < count and time.monotonic() < deadline:
                polled = client.poll(timeout_ms=1000, max_records=count - len(found))
                for record in polled.get(at, []):
                    headers = tuple((name, value) for name, value in record.headers)
                    event = Event(record.key, record.value, headers, record.timestamp)
                    found.append(Read(record.offset, event))
        return found

    def earliest(self, address: str, topic: str, partition: int) -> int:
        at = kafka.TopicPartition(topic, partition)
        with consumer(address) as client:
            return int(client.beginning_offsets([at])[at])

    def latest(self, address: str, topic: str, partition: int) -> int:
        at = kafka.TopicPartition(topic, partition)
        with consumer(address) as client:
            return int(client.end_offsets([at])[at])

    def at_time(self, address: str, topic: str, partition: int, timestamp_ms: int) -> int:
        at = kafka.TopicPartition(topic, partition)
        with consumer(address) as client:
            answer = client.offsets_for_times({at: timestamp_ms})[at]
            return -1 if answer is None else int(answer.offset)


def write(
    address: str,
    topic: str,
    events: Sequence[Event],
    settings: Mapping[str, Any],
    partition: int,
) -> list[int]:
    """Write in order; gives the offset each event was acknowledged with."""
    defaults = {
        "bootstrap_servers": address,
        "acks": "all",
        "linger_ms": 2,
        # A refused batch that is sent again, as on a topic just made, must not be overtaken.
        "max_in_flight_requests_per_connection": 1,
    }
    producer = kafka.KafkaProducer(**{**defaults, **settings})
    try:
        sent = [
            producer.send(
                topic,
                value=event.value,
                key=event.key,
                headers=list(event.headers),
                partition=partition,
                timestamp_ms=event.timestamp_ms,
            )
            for event in events
        ]
        return [future.get(timeout=TIMEOUT_S).offset for future in sent]
    finally:
        producer.close()


@contextlib.contextmanager
def admin(address: str) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=address)
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def consumer(address: str) -> Iterator[Any]:
    client = kafka.KafkaConsumer(
        bootstrap_servers=address, group_id=None, enable_auto_commit=False, check_crcs=True
    )
    try:
        yield client
    finally:
        client.close()

"""confluent-kafka: librdkafka in its newest release."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_clients.event import TIMEOUT_S, Event, Read


class Confluent:
    name = "confluent-kafka"

    def missing(self) -> str:
        return ""

    def expressible(self, event: Event) -> Event | None:
        return event

    def create_topic(
        self, address: str, topic: str, *, partitions: int, settings: Mapping[str, str]
    ) -> None:
        admin = AdminClient({"bootstrap.servers": address})
        made = admin.create_topics(
            [NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)]
        )
        made[topic].result(TIMEOUT_S)

    def write(
        self, address: str, topic: str, events: Sequence[Event], *, codec: str, partition: int
    ) -> None:
        write(address, topic, events, {"compression.type": codec}, partition)

    def read(self, address: str, topic: str, *, partition: int, count: int) -> list[Read]:
        consumer = _consumer(address)
        try:
            start = confluent_kafka.TopicPartition(
                topic, partition, confluent_kafka.OFFSET_BEGINNING
            )
            consumer.assign([start])
            found: list[Read] = []
            deadline = time.monotonic() + TIMEOUT_S
            while len(found) < count and time.monotonic() < deadline:
                for message in consumer.consume(count - len(found), timeout=1.0):
                    if message.error():
                        raise confluent_kafka.KafkaException(message.error())
                    found.append(_read(message))
            return found
        finally:
            consumer.close()

    def earliest(self, address: str, topic: str, partition: int) -> int:
        return self._watermarks(address, topic, partition)[0]

    def latest(self, address: str, topic: str, partition: int) -> int:
        return self._watermarks(address, topic, partition)[1]

    def at_time(self, address: str, topic: str, partition: int, timestamp_ms: int) -> int:
        consumer = _consumer(address)
        try:
            asked = confluent_kafka.TopicPartition(topic, partition, timestamp_ms)
            (answer,) = consumer.offsets_for_times([asked], timeout=TIMEOUT_S)
            assert answer.error is None
            return -1 if answer.offset == confluent_kafka.OFFSET_END else int(answer.offset)
        finally:
            consumer.close()

    def _watermarks(self, address: str, topic: str, partition: int) -> tuple[int, int]:
        consumer = _consumer(address)
        try:
            at = confluent_kafka.TopicPartition(topic, partition)
            low, high = consumer.get_watermark_offsets(at, timeout=TIMEOUT_S)
            return low, high
        finally:
            consumer.close()


def write(
    address: str,
    topic: str,
    events: Sequence[Event],
    settings: Mapping[str, Any],
    partition: int,
) -> list[int]:
    """Write in order; gives the offset each event was acknowledged with."""
    offsets: list[int] = []
    failures: list[str] = []

    def delivered(error: Any, message: confluent_kafka.Message) -> None:
        if error is not None:
            failures.append(str(error))
        else:
            offsets.append(message.offset())

    defaults = {
        "bootstrap.servers": address,
        "acks": "all",
        # A short linger makes several batches instead of one.
        "linger.ms": 2,
        # A refused batch that is sent again, as on a topic just made, must not be overtaken.
        "max.in.flight": 1,
    }
    producer = confluent_kafka.Producer({**defaults, **settings})
    for event in events:
        producer.produce(
            topic,
            value=event.value,
            key=event.key,
            headers=list(event.headers),
            partition=partition,
            timestamp=event.timestamp_ms or 0,
            on_delivery=delivered,
        )
        producer.poll(0)
    unsent = producer.flush(TIMEOUT_S)
    assert not unsent, f"{unsent} records not delivered"
    assert not failures, failures
    return offsets


def _consumer(address: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "conformance",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )


def _read(message: confluent_kafka.Message) -> Read:
    headers = tuple((name, value) for name, value in message.headers() or [])
    return Read(
        message.offset(),
        Event(message.key(), message.value(), headers, message.timestamp()[1]),
    )

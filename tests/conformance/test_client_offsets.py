"""Clients find places in the log by time, at its start and at its end."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import OFFSET_END, Consumer, TopicPartition
from kafka_clients import CLIENTS, Client, Event
from kafka_clients.confluent import write

pytestmark = pytest.mark.clients

NO_GROUP = {"group.id": "unused", "enable.auto.commit": False}
# An hour ago: a time that no client would pick, and that no retention has run out on.
T0 = int(time.time() * 1000) - 3_600_000


def fill(broker: str, topic: str, *, codec: str = "none") -> None:
    """Records 0..99 at T0 + 10 s each, one batch per record so that times are findable."""
    events = [Event(None, f"{i}".encode(), (), T0 + i * 10_000) for i in range(100)]
    settings = {"compression.type": codec, "batch.num.messages": 7, "linger.ms": 0}
    offsets = write(broker, topic, events, settings, 0)
    assert offsets == list(range(100))


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_earliest_latest_and_by_time(broker: str, topic: str, client: Client) -> None:
    if client.missing():
        pytest.skip(client.missing())
    CLIENTS[0].create_topic(broker, topic, partitions=1, settings={})
    assert client.earliest(broker, topic, 0) == 0
    assert client.latest(broker, topic, 0) == 0
    fill(broker, topic)
    assert client.earliest(broker, topic, 0) == 0
    assert client.latest(broker, topic, 0) == 100
    assert client.at_time(broker, topic, 0, T0 - 1) == 0
    assert client.at_time(broker, topic, 0, T0) == 0
    assert client.at_time(broker, topic, 0, T0 + 1) == 1
    assert client.at_time(broker, topic, 0, T0 + 500_000) == 50
    assert client.at_time(broker, topic, 0, T0 + 509_999) == 51
    assert client.at_time(broker, topic, 0, T0 + 990_000) == 99


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_times_inside_a_compressed_batch(broker: str, topic: str, codec: str) -> None:
    confluent = CLIENTS[0]
    confluent.create_topic(broker, topic, partitions=1, settings={})
    events = [Event(None, b"x" * 50, (), T0 + i * 1000) for i in range(500)]
    write(broker, topic, events, {"compression.type": codec, "linger.ms": 50}, 0)
    for wanted in (0, 1, 250, 499):
        assert confluent.at_time(broker, topic, 0, T0 + wanted * 1000) == wanted


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_no_record_that_late(broker: str, topic: str, client: Client) -> None:
    if client.missing():
        pytest.skip(client.missing())
    CLIENTS[0].create_topic(broker, topic, partitions=1, settings={})
    fill(broker, topic)
    assert client.at_time(broker, topic, 0, T0 + 990_001) == -1


def test_a_reader_at_the_end_gets_what_comes_next(broker: str, topic: str) -> None:
    CLIENTS[0].create_topic(broker, topic, partitions=1, settings={})
    fill(broker, topic)
    consumer = Consumer({"bootstrap.servers": broker, **NO_GROUP})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
        # The first poll resolves the end; without it the write below might come first.
        assert consumer.poll(1.0) is None
        write(broker, topic, [Event(None, b"next")], {}, 0)
        message = consumer.poll(30.0)
        assert message is not None
        assert message.error() is None
        assert (message.offset(), message.value()) == (100, b"next")
    finally:
        consumer.close()


def test_an_offset_out_of_range_resets_as_asked(broker: str, topic: str) -> None:
    CLIENTS[0].create_topic(broker, topic, partitions=1, settings={})
    fill(broker, topic)
    consumer = Consumer({"bootstrap.servers": broker, **NO_GROUP, "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(topic, 0, 1_000_000)])
        message = consumer.poll(30.0)
        assert message is not None
        assert message.error() is None
        assert message.offset() == 0
    finally:
        consumer.close()

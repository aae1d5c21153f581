"""A producer that must ask again writes every record once and in order, when it is idempotent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import subjects
from flaky_proxy import FlakyProxy
from kafka_clients import CLIENTS, Event, aio, confluent, kafka_python

import brokers

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka"),
]

Write = Callable[[str, str, list[Event]], list[int]]
# Recent, so that no retention runs out on them.
T0 = int(time.time() * 1000) - 3_600_000
EVENTS = [Event(f"{i}".encode(), b"x" * 100, (), T0 + i) for i in range(400)]


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[FlakyProxy]:
    """A proxy in front of a broker that tells its clients to come through it."""
    proxy = FlakyProxy(lose_every=5, lost_max=6)
    started = subjects.start(tmp_path, advertised=f"127.0.0.1:{proxy.port}")
    host, _, port = started.address.rpartition(":")
    proxy.upstream = (host, int(port))
    with brokers.stopping(started):
        yield proxy
        proxy.close()


def by_confluent(address: str, topic: str, events: list[Event]) -> list[int]:
    settings = {"enable.idempotence": True, "max.in.flight": 5, "batch.num.messages": 5}
    return confluent.write(address, topic, events, settings, 0)


def by_kafka_python(address: str, topic: str, events: list[Event]) -> list[int]:
    flight = {"max_in_flight_requests_per_connection": 5}
    settings = {"enable_idempotence": True, "batch_size": 800, **flight}
    return kafka_python.write(address, topic, events, settings, 0)


def by_aiokafka(address: str, topic: str, events: list[Event]) -> list[int]:
    settings = {"enable_idempotence": True, "max_batch_size": 800}
    return aio.write(address, topic, events, settings, 0)


@pytest.mark.parametrize("write", [by_confluent, by_kafka_python, by_aiokafka])
def test_lost_answers_leave_no_trace(proxy: FlakyProxy, topic: str, write: Write) -> None:
    address = f"127.0.0.1:{proxy.port}"
    CLIENTS[0].create_topic(address, topic, partitions=1, settings={})
    offsets = write(address, topic, EVENTS)
    assert proxy.lost >= 3
    assert CLIENTS[0].latest(address, topic, 0) == len(EVENTS)
    read = CLIENTS[0].read(address, topic, partition=0, count=len(EVENTS))
    assert [one.event for one in read] == EVENTS
    # The answer to a repeated batch names the place the first one got.
    assert offsets == list(range(len(EVENTS)))


def test_without_idempotence_the_same_losses_write_twice(proxy: FlakyProxy, topic: str) -> None:
    """The control: it shows that the losses above do reach the broker as repeats."""
    address = f"127.0.0.1:{proxy.port}"
    CLIENTS[0].create_topic(address, topic, partitions=1, settings={})
    settings = {"enable.idempotence": False, "batch.num.messages": 5, "linger.ms": 0}
    confluent.write(address, topic, EVENTS, settings, 0)
    assert proxy.lost >= 3
    assert CLIENTS[0].latest(address, topic, 0) > len(EVENTS)


def test_two_idempotent_producers_share_a_partition(broker: str, topic: str) -> None:
    CLIENTS[0].create_topic(broker, topic, partitions=1, settings={})
    for write in (by_confluent, by_aiokafka, by_kafka_python, by_confluent):
        write(broker, topic, EVENTS[:50])
    read = CLIENTS[0].read(broker, topic, partition=0, count=200)
    assert [one.event for one in read] == EVENTS[:50] * 4

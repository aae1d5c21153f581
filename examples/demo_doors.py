"""One topic, five kinds of clients: how the demo writes and reads through each door.

Kafka, Fluvio and Cursus are used through their own released clients; RustLog and BlipMQ publish
none, so theirs are pentalog's own.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

TOPIC = "sales"
ORDERS = 2_000
POISON = b"this is no order"
WAIT_S = 60


class WentWrong(Exception):
    """Something is not as this story says."""


def say(text: str) -> None:
    print(text, flush=True)


def write_kafka(address: str, values: Sequence[bytes]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address})
    for value in values:
        producer.produce(TOPIC, value)
    if producer.flush(WAIT_S):
        raise WentWrong(f"not every record was acknowledged in {WAIT_S} s")


def read_kafka(address: str) -> Iterator[bytes]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "demo-readers"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    try:
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            yield from (message.value() for message in consumer.consume(1_000, 0.2))
    finally:
        consumer.close()


def write_fluvio(address: str, values: Sequence[bytes]) -> None:
    from fluvio import Fluvio, FluvioConfig

    config = FluvioConfig.new(address)
    config.disable_tls()
    producer = Fluvio.connect_with_config(config).topic_producer(TOPIC)
    producer.send_all([(b"", value) for value in values])
    producer.flush()


def read_fluvio(address: str) -> Iterator[bytes]:
    from fluvio import Fluvio, FluvioConfig, Offset

    config = FluvioConfig.new(address)
    config.disable_tls()
    consumer = Fluvio.connect_with_config(config).partition_consumer(TOPIC, 0)
    for record in consumer.stream(Offset.beginning()):
        yield bytes(record.value())


def write_cursus(address: str, values: Sequence[bytes]) -> None:
    from cursus import Acks, Producer, ProducerConfig

    config = ProducerConfig(topic=TOPIC, brokers=[address], partitions=1, acks=Acks.ALL)
    producer = Producer(config)
    for value in values:
        producer.send(value.decode())
    producer.flush()
    producer.close()


def read_cursus(address: str) -> Iterator[bytes]:
    from cursus import Consumer, ConsumerConfig

    config = ConsumerConfig(topic=TOPIC, brokers=[address], group_id="demo-cursus")
    with Consumer(config) as consumer:
        for message in consumer:
            yield message.payload.encode()


def write_rustlog(address: str, values: Sequence[bytes]) -> None:
    from pentalog.clients.rustlog import RustLogClient

    with RustLogClient(address) as client:
        client.produce(TOPIC, 0, values)


def read_rustlog(address: str) -> Iterator[bytes]:
    from pentalog.clients.rustlog import RustLogClient

    with RustLogClient(address) as client:
        for record in client.records(TOPIC, 0):
            yield record.value


def write_blipmq(address: str, values: Sequence[bytes]) -> None:
    from pentalog.clients.blipmq import BlipmqClient

    with BlipmqClient(address) as client:
        client.publish(TOPIC, *values)


class Subscriber:
    """A BlipMQ subscription: it begins where the topic ends, so it is opened before the writing."""

    def __init__(self, address: str) -> None:
        from pentalog.clients.blipmq import BlipmqClient

        self._client = BlipmqClient(address)
        self._number = self._client.subscribe(TOPIC)

    def read(self, _address: str) -> Iterator[bytes]:
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            for delivery in self._client.poll(self._number, 100):
                self._client.acknowledge(self._number, delivery.tag)
                yield delivery.message

    def close(self) -> None:
        self._client.close()


class Door(NamedTuple):
    name: str
    listener: str
    package: str
    """Of the client; without it the door is left out."""
    write: Callable[[str, Sequence[bytes]], None]
    read: Callable[[str], Iterator[bytes]] | None
    """None: the subscriber's."""


DOORS = (
    Door("Kafka", "kafka", "confluent_kafka", write_kafka, read_kafka),
    Door("Fluvio", "fluvio-sc", "fluvio", write_fluvio, read_fluvio),
    Door("Cursus", "cursus", "cursus", write_cursus, read_cursus),
    Door("RustLog", "rustlog", "pentalog", write_rustlog, read_rustlog),
    Door("BlipMQ", "blipmq", "pentalog", write_blipmq, None),
)


def orders(door: str) -> list[bytes]:
    return [
        json.dumps({"id": number, "amount": number % 8 / 4, "through": door}).encode()
        for number in range(ORDERS)
    ]


def tell(addresses: Mapping[str, str]) -> int:
    """Write through every door, read through every door; how many records there are then."""
    say("\n4. One topic, five kinds of clients")
    used = [door for door in DOORS if importlib.util.find_spec(door.package) is not None]
    subscriber = Subscriber(addresses["blipmq"])
    written: Counter[bytes] = Counter()
    for door in used:
        values = orders(door.name)
        door.write(addresses[door.listener], values)
        written.update(values)
    write_kafka(addresses["kafka"], [POISON])
    written[POISON] += 1
    count = written.total()
    names = ", ".join(door.name for door in used)
    say(f"   {ORDERS:,} orders each written through {names}; and one record that is no order")
    for door in used:
        started = time.monotonic()
        read = door.read or subscriber.read
        found = Counter(islice(read(addresses[door.listener]), count))
        if found != written:
            missing, extra = (written - found).total(), (found - written).total()
            raise WentWrong(f"{door.name} misses {missing} records and has {extra} others")
        say(f"   {door.name} reads all {count:,} back in {time.monotonic() - started:.2f} s")
    subscriber.close()
    return count

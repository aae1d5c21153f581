"""Kafka's own clients begin at a gateway and go on to Apache Kafka itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

import aiokafka
import confluent_kafka
import kafka
from fleet_member import FleetMember
from kafka_clients import CLIENTS, Client, Event
from kafka_node import Node

import apache_kafka
from pentalog.clients.kafka import Cluster, committed
from pentalog.model.types import Partition

pytestmark = [pytest.mark.java, pytest.mark.clients, pytest.mark.timeout(900)]

TIMEOUT_S = 180
PYTHON = [client for client in CLIENTS if client.name != "kcat"]


@pytest.fixture(scope="module")
def gateway(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetMember]:
    started = FleetMember(tmp_path_factory.mktemp("kafka") / "one", node.address, ("kafka",))
    yield started
    assert started.stop() == 0


@pytest.fixture
def address(gateway: FleetMember) -> str:
    return gateway.addresses["kafka"]


@pytest.fixture
def place(node: Node, topic: str) -> Partition:
    with Cluster(node.address) as cluster:
        cluster.create_topic(topic, 1)
    return Partition(topic, 0)


def test_nothing_but_the_way_is_served(node: Node, address: str, place: Partition) -> None:
    with Cluster(address) as guided, Cluster(node.address) as cluster:
        assert guided.topic(place.topic) == cluster.topic(place.topic)
    admin = kafka.KafkaAdminClient(bootstrap_servers=node.address)
    served = admin._manager.broker_version_data.api_versions
    admin.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=address)
    told = consumer._manager.broker_version_data.api_versions
    consumer.close()
    assert {0, 1, 3, 10, 18} <= told.keys() < served.keys()
    for key, (least, most) in told.items():
        assert served[key][0] <= least <= most <= served[key][1]


@pytest.mark.parametrize("client", PYTHON, ids=lambda client: client.name)
def test_records_go_straight_to_the_cluster(
    node: Node, gateway: FleetMember, address: str, place: Partition, client: Client
) -> None:
    events = [Event(None, b"%d" % number) for number in range(500)]
    client.write(address, place.topic, events, codec="lz4", partition=0)
    found = client.read(address, place.topic, partition=0, count=500)
    assert [each.event.value for each in found] == [event.value for event in events]
    assert client.latest(address, place.topic, 0) == 500
    COMMITS[client.name](address, place.topic)
    with Cluster(node.address) as cluster:
        assert committed(cluster, place.topic)[place].offset == 500


def commit_by_confluent(address: str, topic: str) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    assert len(consumer.consume(500, TIMEOUT_S)) == 500
    consumer.commit(asynchronous=False)
    consumer.close()


def commit_by_kafka_python(address: str, topic: str) -> None:
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id=topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT_S * 1000,
    )
    for _, _ in zip(range(500), consumer, strict=False):
        pass
    consumer.commit()
    consumer.close()


def commit_by_aiokafka(address: str, topic: str) -> None:
    async def run() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=address, group_id=topic, auto_offset_reset="earliest"
        )
        await consumer.start()
        for _ in range(500):
            await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
        await consumer.commit()
        await consumer.stop()

    asyncio.run(run())


COMMITS: dict[str, Callable[[str, str], None]] = {
    "confluent-kafka": commit_by_confluent,
    "kafka-python": commit_by_kafka_python,
    "aiokafka": commit_by_aiokafka,
}


def test_java(node: Node, address: str, place: Partition, tmp_path: Path) -> None:
    """Its producers are idempotent, and ask whom they know first for their id."""
    topic = place.topic
    wrote = apache_kafka.run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        [
            *("--topic", topic, "--num-records", "500", "--record-size", "50"),
            *("--throughput", "-1", "--bootstrap-server", address),
        ],
    )
    assert "500 records sent" in wrote.stdout, wrote.stdout + wrote.stderr
    read = apache_kafka.run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        [
            *("--bootstrap-server", address, "--topic", topic, "--group", topic),
            *("--from-beginning", "--max-messages", "500"),
        ],
    )
    assert "Processed a total of 500 messages" in read.stdout + read.stderr
    with Cluster(node.address) as cluster:
        assert committed(cluster, topic)[place].offset == 500


def test_transactions(address: str, place: Partition) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "transactional.id": place.topic}
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(place.topic, b"whole", partition=0)
    producer.commit_transaction(TIMEOUT_S)
    (found,) = CLIENTS[0].read(address, place.topic, partition=0, count=1)
    assert found.event.value == b"whole"


def test_clients_outlive_the_gateway(gateway: FleetMember, address: str, place: Partition) -> None:
    failures: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "log_level": 0})

    def send(value: bytes) -> None:
        producer.produce(
            place.topic, value, partition=0, on_delivery=lambda error, _: failures.append(error)
        )
        assert producer.flush(TIMEOUT_S) == 0

    send(b"before")
    gateway.kill()
    send(b"after")
    gateway.start()
    assert failures == [None, None]

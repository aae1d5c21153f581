"""Quotas and broker settings, as real clients and Kafka's own tool see them."""

from __future__ import annotations

import io
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import raw
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from kio.schema.alter_client_quotas.v1 import request as altering
from kio.serial import entity_writer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "java"))

from jvm import Client, Clients, Jvm, compile_driver

import apache_kafka

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka"),
]

TIMEOUT_S = 180.0
RATE = 20_000
VALUE = b"v" * 10_000
RECORDS = 24
"""Ten seconds' worth may be written or read at once; this is two seconds' worth more."""


@pytest.fixture
def client_id() -> str:
    return f"quota-{uuid.uuid4().hex[:8]}"


def set_quota(address: str, client_id: str, key: str, value: float | None) -> None:
    entity = altering.EntityData(entity_type="client-id", entity_name=client_id)
    change = altering.OpData(key=key, value=value or 0.0, remove=value is None)
    entry = altering.EntryData(entity=(entity,), ops=(change,))
    body = io.BytesIO()
    asked = altering.AlterClientQuotasRequest(entries=(entry,), validate_only=False)
    entity_writer(altering.AlterClientQuotasRequest)(body, asked)
    with raw.connect(address) as peer:
        peer.sendall(raw.frame(49, 1, 1, b"\0" + body.getvalue()))
        answer = raw.answer(peer)
    # Correlation, tags, throttle time, one entry.
    assert answer[10:12] == b"\0\0", answer


@contextmanager
def quota(address: str, client_id: str, key: str) -> Iterator[None]:
    set_quota(address, client_id, key, float(RATE))
    try:
        yield
    finally:
        set_quota(address, client_id, key, None)


def fill(address: str, topic: str, count: int = RECORDS, **settings: Any) -> list[int]:
    """Write records one batch each; returns the throttle times the client was told, in ms."""
    told: list[int] = []
    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 0,
            "batch.num.messages": 1,
            "throttle_cb": lambda event: told.append(round(event.throttle_time * 1000)),
            **settings,
        }
    )
    refused: list[Any] = []
    for _ in range(count):
        producer.produce(topic, VALUE, on_delivery=lambda error, _: error and refused.append(error))
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    producer.poll(0)
    assert refused == []
    return [delay_ms for delay_ms in told if delay_ms > 0]


def drain(address: str, topic: str, **settings: Any) -> tuple[int, list[int]]:
    """Read everything; returns the number of records and the throttle times told, in ms."""
    told: list[int] = []
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "none",
            "enable.auto.commit": False,
            "throttle_cb": lambda event: told.append(round(event.throttle_time * 1000)),
            **settings,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found, deadline = 0, time.monotonic() + TIMEOUT_S
    while found < RECORDS and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None
            found += 1
    consumer.close()
    return found, [delay_ms for delay_ms in told if delay_ms > 0]


def test_a_producer_over_its_quota_is_slowed_down(broker: str, topic: str, client_id: str) -> None:
    AdminClient({"bootstrap.servers": broker}).list_topics(topic, timeout=TIMEOUT_S)
    with quota(broker, client_id, "producer_byte_rate"):
        assert max(fill(broker, topic, **{"client.id": client_id})) > 500
        assert fill(broker, topic, **{"client.id": "somebody-else"}) == []
    assert drain(broker, topic) == (RECORDS, [])


def test_a_consumer_over_its_quota_is_slowed_down(broker: str, topic: str, client_id: str) -> None:
    fill(broker, topic)
    with quota(broker, client_id, "consumer_byte_rate"):
        started = time.monotonic()
        found, told = drain(broker, topic, **{"client.id": client_id})
        assert (found, bool(told)) == (RECORDS, True)
        assert time.monotonic() - started > 1.0
        assert drain(broker, topic, **{"client.id": "somebody-else"}) == (RECORDS, [])


def test_kafka_python_gets_everything_through(broker: str, topic: str, client_id: str) -> None:
    with quota(broker, client_id, "producer_byte_rate"):
        producer = KafkaProducer(
            bootstrap_servers=broker, client_id=client_id, batch_size=1, retries=0
        )
        for _ in range(RECORDS):
            producer.send(topic, VALUE)
        producer.flush(TIMEOUT_S)
        producer.close()
    assert drain(broker, topic) == (RECORDS, [])


def node_id(address: str) -> str:
    brokers = AdminClient({"bootstrap.servers": address}).list_topics(timeout=TIMEOUT_S).brokers
    return str(next(iter(brokers)))


def alter(admin: AdminClient, name: str, key: str, value: str | None) -> None:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(key, value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.BROKER, name, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def described(
    admin: AdminClient, kind: ResourceType, name: str, key: str, *, value: str
) -> ConfigEntry:
    """A setting once it has a value: Kafka answers for a change before it has made it."""
    resource = ConfigResource(kind, name)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            found: ConfigEntry = admin.describe_configs([resource])[resource].result(TIMEOUT_S)[key]
        except KafkaException:
            found = ConfigEntry(key, None)
        if found.value == value or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def test_broker_settings_change_while_it_runs(broker: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker})
    name = node_id(broker)
    admin.list_topics(topic, timeout=TIMEOUT_S)
    key = "log.index.interval.bytes"
    alter(admin, name, key, "54321")
    try:
        entry = described(admin, ResourceType.BROKER, name, key, value="54321")
        assert (entry.value, entry.source, entry.is_read_only) == ("54321", 2, False)
        follows = described(admin, ResourceType.TOPIC, topic, "index.interval.bytes", value="54321")
        assert (follows.value, follows.source) == ("54321", 2)
    finally:
        alter(admin, name, key, None)
    assert described(admin, ResourceType.BROKER, name, key, value="4096").source == 5
    with pytest.raises(KafkaException):
        alter(admin, name, "node.id", "17")


def test_kafka_python_asks_what_one_broker_can_answer(broker: str, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker)
    try:
        admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
        assert not admin.list_partition_reassignments()
    finally:
        admin.close()


@pytest.mark.java
def test_kafkas_own_tool(broker: str, client_id: str, tmp_path: Path) -> None:
    try:
        classes = compile_driver()
    except apache_kafka.JarsMissing as why:
        pytest.skip(str(why))
    with Jvm(classes, tmp_path / "stderr") as jvm:
        run_kafkas_own_tool(Clients(jvm, broker).open("toolbox", {}), broker, client_id)


def run_kafkas_own_tool(toolbox: Client, broker: str, client_id: str) -> None:
    def tool(*arguments: str) -> tuple[int, str]:
        words = ["--bootstrap-server", broker, *arguments]
        done = toolbox("run", tool="kafka.admin.ConfigCommand", arguments=words, input="")
        return done["code"], done["out"] + done["errors"]

    entity = ("--entity-type", "clients", "--entity-name", client_id)
    added = "producer_byte_rate=1048576,request_percentage=400"
    assert tool("--alter", *entity, "--add-config", added)[0] == 0
    code, text = tool("--describe", *entity)
    assert code == 0
    assert "producer_byte_rate=1048576.0" in text
    assert "request_percentage=400.0" in text
    removed = "producer_byte_rate,request_percentage"
    assert tool("--alter", *entity, "--delete-config", removed)[0] == 0
    name = ("--entity-type", "brokers", "--entity-name", node_id(broker))
    assert tool("--alter", *name, "--add-config", "log.flush.interval.ms=987654")[0] == 0
    code, text = tool("--describe", *name)
    assert code == 0
    assert "DYNAMIC_BROKER_CONFIG:log.flush.interval.ms=987654" in text
    assert tool("--alter", *name, "--delete-config", "log.flush.interval.ms")[0] == 0

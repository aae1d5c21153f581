"""Topics are made, described, changed and removed by the admin clients people use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka_clients import CLIENTS, Event
from kafka_clients.confluent import write
from kafka_clients.kafka_python import admin as python_admin

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka"),
]

TIMEOUT_S = 180.0
CONFLUENT = CLIENTS[0]

CLUSTER_SETTINGS = {
    "compression.gzip.level": "7",
    "compression.lz4.level": "9",
    "compression.zstd.level": "-5",
    "follower.replication.throttled.replicas": "*",
    "leader.replication.throttled.replicas": "0:0",
    "local.retention.bytes": "-2",
    "local.retention.ms": "1000",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "true",
    "remote.storage.enable": "false",
    "unclean.leader.election.enable": "true",
}
"""What tools that were written for a cluster give topics."""


@pytest.fixture
def admin(broker: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker})


def eventually(condition: Callable[[], bool]) -> bool:
    """Kafka tells its own listeners about a change after it has answered for it."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def settings_of(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    asked = ConfigResource(ResourceType.TOPIC, topic)
    found: dict[str, ConfigEntry] = admin.describe_configs([asked])[asked].result(TIMEOUT_S)
    return found


def incrementally(admin: AdminClient, topic: str, name: str, value: str | None) -> None:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def test_create_list_describe_delete(admin: AdminClient, topic: str) -> None:
    new = NewTopic(topic, num_partitions=3, replication_factor=1)
    admin.create_topics([new])[topic].result(TIMEOUT_S)
    assert eventually(lambda: topic in admin.list_topics(timeout=TIMEOUT_S).topics)
    found = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
    assert sorted(found.partitions) == [0, 1, 2]
    assert all(one.leader == one.replicas[0] == one.isrs[0] for one in found.partitions.values())
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    assert eventually(lambda: topic not in admin.list_topics(timeout=TIMEOUT_S).topics)


def test_a_topic_is_created_once(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(TIMEOUT_S)
    with pytest.raises(KafkaException) as refusal:
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(TIMEOUT_S)
    assert refusal.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize(
    ("name", "partitions", "settings", "code"),
    [
        ("bad/name", 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("x" * 250, 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("conformance-refused", 1, {"no.such.setting": "1"}, KafkaError.INVALID_CONFIG),
        ("conformance-refused", 1, {"retention.ms": "soon"}, KafkaError.INVALID_CONFIG),
    ],
)
def test_refused_topics(
    admin: AdminClient, name: str, partitions: int, settings: dict[str, str], code: int
) -> None:
    with pytest.raises(KafkaException) as refusal:
        admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(
            TIMEOUT_S
        )
    assert refusal.value.args[0].code() == code
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_validating_creates_nothing(admin: AdminClient, topic: str) -> None:
    made = admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True)
    made[topic].result(TIMEOUT_S)
    assert topic not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_deleting_an_unknown_topic_is_refused(admin: AdminClient, topic: str) -> None:
    with pytest.raises(KafkaException) as refusal:
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    assert refusal.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_settings_are_described_and_changed(admin: AdminClient, topic: str) -> None:
    new = NewTopic(topic, 1, 1, config={"retention.ms": "3600000", "cleanup.policy": "compact"})
    admin.create_topics([new])[topic].result(TIMEOUT_S)
    assert eventually(lambda: settings_of(admin, topic)["retention.ms"].value == "3600000")
    found = settings_of(admin, topic)
    assert found["cleanup.policy"].value == "compact"
    assert not found["retention.ms"].is_default
    assert found["segment.bytes"].is_default
    assert int(found["segment.bytes"].value) > 0

    incrementally(admin, topic, "retention.ms", "7200000")
    assert eventually(lambda: settings_of(admin, topic)["retention.ms"].value == "7200000")
    assert settings_of(admin, topic)["cleanup.policy"].value == "compact"

    incrementally(admin, topic, "retention.ms", None)
    assert eventually(lambda: settings_of(admin, topic)["retention.ms"].is_default)
    assert settings_of(admin, topic)["retention.ms"].value == "604800000"


def test_settings_written_for_a_cluster_are_taken(admin: AdminClient, topic: str) -> None:
    new = NewTopic(topic, 1, 1, config=CLUSTER_SETTINGS)
    admin.create_topics([new])[topic].result(TIMEOUT_S)
    assert eventually(lambda: settings_of(admin, topic)["local.retention.ms"].value == "1000")
    found = settings_of(admin, topic)
    assert {name: found[name].value for name in CLUSTER_SETTINGS} == CLUSTER_SETTINGS
    assert not any(found[name].is_default for name in CLUSTER_SETTINGS)

    for name in CLUSTER_SETTINGS:
        incrementally(admin, topic, name, None)
    assert eventually(
        lambda: all(settings_of(admin, topic)[name].is_default for name in CLUSTER_SETTINGS)
    )


def test_a_setting_nobody_knows_can_be_taken_back(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(TIMEOUT_S)
    incrementally(admin, topic, "message.format.version", None)
    with pytest.raises(KafkaException) as refusal:
        incrementally(admin, topic, "message.format.version", "3.0")
    assert refusal.value.args[0].code() == KafkaError.INVALID_CONFIG


def test_replacing_settings_drops_the_others(admin: AdminClient, topic: str) -> None:
    new = NewTopic(topic, 1, 1, config={"retention.ms": "3600000", "cleanup.policy": "compact"})
    admin.create_topics([new])[topic].result(TIMEOUT_S)
    replacement = ConfigResource(
        ResourceType.TOPIC, topic, set_config={"max.message.bytes": "2000000"}
    )
    with pytest.warns(Warning, match="deprecated"):
        changed = admin.alter_configs([replacement])
    changed[replacement].result(TIMEOUT_S)
    assert eventually(lambda: settings_of(admin, topic)["max.message.bytes"].value == "2000000")
    found = settings_of(admin, topic)
    assert found["retention.ms"].is_default
    assert found["cleanup.policy"].value == "delete"


def test_a_refused_setting_changes_nothing(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(TIMEOUT_S)
    with pytest.raises(KafkaException) as refusal:
        incrementally(admin, topic, "cleanup.policy", "shred")
    assert refusal.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert settings_of(admin, topic)["cleanup.policy"].value == "delete"


def test_partitions_are_added_never_removed(broker: str, admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(TIMEOUT_S)
    write(broker, topic, [Event(None, b"first")], {}, 0)
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(TIMEOUT_S)

    def count() -> int:
        return len(admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)

    assert eventually(lambda: count() == 4)
    write(broker, topic, [Event(None, b"last")], {}, 3)
    for partition, value in ((0, b"first"), (3, b"last")):
        (read,) = CONFLUENT.read(broker, topic, partition=partition, count=1)
        assert read.event.value == value
    with pytest.raises(KafkaException) as refusal:
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(TIMEOUT_S)
    assert refusal.value.args[0].code() == KafkaError.INVALID_PARTITIONS


def test_records_before_an_offset_are_deleted(broker: str, admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(TIMEOUT_S)
    events = [Event(None, f"{i}".encode()) for i in range(100)]
    write(broker, topic, events, {"batch.num.messages": 10}, 0)
    at = TopicPartition(topic, 0, 42)
    deleted = admin.delete_records([at])[at].result(TIMEOUT_S)
    assert deleted.low_watermark == 42
    assert CONFLUENT.earliest(broker, topic, 0) == 42
    assert CONFLUENT.latest(broker, topic, 0) == 100
    read = CONFLUENT.read(broker, topic, partition=0, count=58)
    # Offset 42 lies inside a batch: its earlier records must stay hidden.
    assert [(one.offset, one.event.value) for one in read] == [
        (i, f"{i}".encode()) for i in range(42, 100)
    ]
    beyond = TopicPartition(topic, 0, 101)
    with pytest.raises(KafkaException) as refusal:
        admin.delete_records([beyond])[beyond].result(TIMEOUT_S)
    assert refusal.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE


def test_kafka_python_does_all_of_it(broker: str, topic: str) -> None:
    from kafka.admin import ConfigResource as PythonResource
    from kafka.admin import ConfigResourceType, NewTopic

    with python_admin(broker) as client:
        client.create_topics(
            [
                NewTopic(
                    name=topic,
                    num_partitions=2,
                    replication_factor=1,
                    topic_configs={"retention.ms": "3600000"},
                )
            ]
        )
        client.wait_for_topics([topic])
        assert topic in client.list_topics()
        (described,) = client.describe_topics([topic])
        assert sorted(one["partition_index"] for one in described["partitions"]) == [0, 1]

        resource = PythonResource(ConfigResourceType.TOPIC, topic)
        changed = PythonResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "60000"})
        assert python_setting(client, resource, topic, "retention.ms") == "3600000"
        client.alter_configs([changed])
        assert eventually(
            lambda: python_setting(client, resource, topic, "retention.ms") == "60000"
        )

        client.create_partitions({topic: 3})
        assert eventually(lambda: len(client.describe_topics([topic])[0]["partitions"]) == 3)
        write(broker, topic, [Event(None, b"x")] * 10, {}, 2)
        python_delete_records(client, topic, 2, 4)
        assert CONFLUENT.earliest(broker, topic, 2) == 4
        client.delete_topics([topic])
        assert eventually(lambda: topic not in client.list_topics())


def python_setting(client: Any, resource: Any, topic: str, name: str) -> str:
    found = client.describe_configs([resource], config_filter="all")
    return str(found["topic"][topic][name]["value"])


def python_delete_records(client: Any, topic: str, partition: int, before: int) -> None:
    from kafka import TopicPartition as PythonPartition

    client.delete_records({PythonPartition(topic, partition): before})

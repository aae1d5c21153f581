"""DescribeCluster, DescribeTopicPartitions, DescribeLogDirs and DeleteRecords."""

from __future__ import annotations

import shutil
from datetime import timedelta
from typing import Any

import pytest
from admin_line import AdminLine

from pentalog.broker.port import TopicSpec
from pentalog.model.batch import build
from pentalog.model.types import Ack, Partition, Record
from pentalog.protocols.kafka.api import k75_describe_topic_partitions

NOT_ASKED = -(1 << 31)


@pytest.mark.parametrize("version", range(3))
def test_the_cluster(line: AdminLine, version: int) -> None:
    def ask(operations: bool, endpoint_type: int = 1) -> Any:
        return line.ask(
            60,
            version,
            include_cluster_authorized_operations=operations,
            endpoint_type=endpoint_type,
            include_fenced_brokers=True,
        )

    answer = ask(operations=False)
    assert answer.error_code == 0
    assert answer.cluster_id == line.broker.cluster_id
    assert answer.controller_id == 3
    assert answer.cluster_authorized_operations == NOT_ASKED
    ((broker),) = answer.brokers
    assert (broker.broker_id, broker.host, broker.port) == (3, "kafka.example", 9092)
    allowed = ask(operations=True).cluster_authorized_operations
    assert {bit for bit in range(32) if allowed >> bit & 1} == {5, 7, 8, 9, 10, 11, 12}
    if version >= 1:
        assert ask(operations=True, endpoint_type=2).error_code == 114
        assert ask(operations=True, endpoint_type=9).error_code == 115


def partitions_of(
    line: AdminLine, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> Any:
    return line.ask(
        75,
        0,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=cursor and {"topic_name": cursor[0], "partition_index": cursor[1]},
    )


def test_topics_with_partitions(line: AdminLine) -> None:
    made = line.broker.topics.create(TopicSpec(name="a", partitions=2))
    answer = partitions_of(line, "b", "a", "b!")
    a, b, bad = answer.topics
    assert (a.name, a.error_code, a.topic_id) == ("a", 0, made.topic_id)
    assert {bit for bit in range(32) if a.topic_authorized_operations >> bit & 1} == {
        3, 4, 5, 6, 7, 8, 10, 11,
    }  # fmt: skip
    assert [each.partition_index for each in a.partitions] == [0, 1]
    first = a.partitions[0]
    assert (first.leader_id, first.leader_epoch) == (3, 0)
    assert first.replica_nodes == first.isr_nodes == (3,)
    assert first.offline_replicas == ()
    assert (b.name, b.error_code, b.topic_id, b.partitions) == ("b", 3, None, ())
    assert bad.error_code == 17
    assert answer.next_cursor is None


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 5, 100])
def test_paging_sees_every_partition_once(line: AdminLine, limit: int) -> None:
    for name, count in (("a", 1), ("b", 4), ("c", 3)):
        line.broker.topics.create(TopicSpec(name=name, partitions=count))
    seen: list[tuple[str, int]] = []
    cursor: tuple[str, int] | None = None
    for _ in range(10):
        answer = partitions_of(line, limit=limit, cursor=cursor)
        page = [
            (topic.name, each.partition_index)
            for topic in answer.topics
            for each in topic.partitions
        ]
        assert len(page) <= max(1, limit)
        seen += page
        if answer.next_cursor is None:
            break
        cursor = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
    expected = [
        ("a", 0),
        *(("b", index) for index in range(4)),
        *(("c", index) for index in range(3)),
    ]
    assert seen == expected


def test_a_page_is_bounded(line: AdminLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k75_describe_topic_partitions, "PARTITIONS_MAX", 3)
    line.broker.topics.create(TopicSpec(name="a", partitions=5))
    answer = partitions_of(line, limit=2**31 - 1)
    assert [each.partition_index for each in answer.topics[0].partitions] == [0, 1, 2]
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("a", 3)


def test_a_cursor_at_a_topic_that_is_gone_goes_on_after_it(line: AdminLine) -> None:
    for name in ("a", "c"):
        line.broker.topics.create(TopicSpec(name=name))
    answer = partitions_of(line, cursor=("b", 1))
    assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("c", 2)]


@pytest.mark.parametrize("version", range(1, 6))
def test_log_directories(line: AdminLine, version: int) -> None:
    for name in ("a", "b"):
        line.broker.topics.create(TopicSpec(name=name, partitions=3))
    (everything,) = line.ask(35, version, topics=None).results
    assert everything.error_code == 0
    assert everything.log_dir == str(line.config.data)
    if version >= 4:
        disk = shutil.disk_usage(line.config.data)
        assert everything.total_bytes == disk.total
        assert 0 < everything.usable_bytes <= disk.total
    assert [(each.name, len(each.partitions)) for each in everything.topics] == [("a", 3), ("b", 3)]
    asked = [{"topic": "b", "partitions": [2, 0, 7]}, {"topic": "c", "partitions": [0]}]
    (some,) = line.ask(35, version, topics=asked).results
    assert [
        (topic.name, [each.partition_index for each in topic.partitions]) for topic in some.topics
    ] == [("b", [0, 2])]
    for each in some.topics[0].partitions:
        at = Partition("b", each.partition_index)
        assert each.partition_size == line.broker.log.size_bytes(at)
        assert (each.offset_lag, each.is_future_key) == (0, False)


def delete_records(line: AdminLine, version: int, topic: str, index: int, offset: int) -> Any:
    partition = {"partition_index": index, "offset": offset}
    answer = line.ask(
        21,
        version,
        topics=[{"name": topic, "partitions": [partition]}],
        timeout=timedelta(seconds=1),
    )
    (result,) = answer.topics[0].partitions
    assert result.partition_index == index
    return result.error_code, result.low_watermark


def fill(line: AdminLine, topic: str, count: int) -> None:
    """Records of one batch each, on the disk."""
    for _ in range(count):
        batch = build([Record(b"value", b"key")], timestamp_ms=line.runtime.now_ms())
        appended = line.broker.log.append(Partition(topic, 0), memoryview(batch))
        line.broker.log.settle(appended, Ack.DURABLE)
    line.runtime.run()
    assert line.broker.log.marks(Partition(topic, 0)).durable == count


@pytest.mark.parametrize("version", range(3))
def test_deleting_records(line: AdminLine, version: int) -> None:
    line.broker.topics.create(TopicSpec(name="a"))
    fill(line, "a", 10)
    assert delete_records(line, version, "a", 0, 4) == (0, 4)
    assert line.broker.log.marks(Partition("a", 0)).start == 4
    assert delete_records(line, version, "a", 0, 2) == (0, 4)
    assert delete_records(line, version, "a", 0, 11) == (1, -1)
    assert delete_records(line, version, "a", 0, -2) == (1, -1)
    assert delete_records(line, version, "a", 2, 0) == (3, -1)
    assert delete_records(line, version, "b", 0, 0) == (3, -1)
    assert delete_records(line, version, "a", 0, -1) == (0, 10)
    assert line.broker.log.marks(Partition("a", 0)).start == 10


def test_records_of_a_compacted_topic_cannot_be_deleted(line: AdminLine) -> None:
    line.broker.topics.create(TopicSpec(name="a", settings={"cleanup.policy": "compact"}))
    line.broker.topics.create(TopicSpec(name="b", settings={"cleanup.policy": "compact,delete"}))
    for name in ("a", "b"):
        fill(line, name, 1)
    assert delete_records(line, 2, "a", 0, -1) == (44, -1)
    assert delete_records(line, 2, "b", 0, -1) == (0, 1)


def test_deleted_records_stay_deleted(line: AdminLine) -> None:
    line.broker.topics.create(TopicSpec(name="a"))
    fill(line, "a", 10)
    assert delete_records(line, 2, "a", 0, 4) == (0, 4)
    checkpoint = line.config.data / "log-start-offset-checkpoint"
    topic_id = line.broker.topics.get("a").topic_id
    assert f"a 0 4 {topic_id.hex}" in checkpoint.read_text().splitlines()

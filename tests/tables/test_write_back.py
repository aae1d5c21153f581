"""Rows of queries become records of topics, once each."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import pentalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUES = "select cast(id as string) as key, concat('value ', id) as value from range(0, {}, 1, {})"


def make_topic(server: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": server})
    for done in admin.create_topics([NewTopic(topic, partitions)]).values():
        done.result(30)


def records(server: str, topic: str, partitions: int) -> list[Any]:
    """Every committed record of a topic, as a Kafka client sees it."""
    consumer = Consumer(
        {
            "bootstrap.servers": server,
            "group.id": f"reader-{uuid.uuid4().hex[:8]}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    found: list[Any] = []
    try:
        places = [TopicPartition(topic, index, 0) for index in range(partitions)]
        consumer.assign(places)
        ended: set[int] = set()
        while len(ended) < partitions:
            # One by one: asked for many, the client waits for a timeout at the end.
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is not None:
                ended.add(message.partition())
            else:
                found.append(message)
    finally:
        consumer.close()
    return found


def test_rows_become_records(spark: SparkSession, broker: pentalog.Broker, topic: str) -> None:
    server = broker.address("kafka")
    make_topic(server, topic, 3)
    rows = spark.sql(
        """select binary('k') as key, binary('v') as value, 2 as partition,
           timestamp '2024-05-06 07:08:09.123456' as timestamp,
           array(named_struct('key', 'h', 'value', binary('1')),
                 named_struct('key', 'n', 'value', cast(null as binary))) as headers
           union all select null, null, 0, null, null"""
    )
    rows.write.format("pentalog").mode("append").option("servers", server).option(
        "topic", topic
    ).save()
    first, second = sorted(records(server, topic, 3), key=lambda one: one.partition())
    assert (first.partition(), first.key(), first.value(), first.headers()) == (0, None, None, None)
    assert (second.partition(), second.key(), second.value()) == (2, b"k", b"v")
    assert second.headers() == [("h", b"1"), ("n", None)]
    assert second.timestamp()[1] == 1_714_979_289_123
    assert first.timestamp()[1] > second.timestamp()[1]


def test_keys_go_where_kafkas_own_clients_put_them(
    spark: SparkSession, broker: pentalog.Broker, topic: str
) -> None:
    server = broker.address("kafka")
    make_topic(server, topic, 7)
    make_topic(server, f"{topic}-kafka", 7)
    producer = Producer({"bootstrap.servers": server, "partitioner": "murmur2_random"})
    for number in range(500):
        producer.produce(f"{topic}-kafka", key=str(number).encode(), value=b"")
    assert producer.flush(30) == 0
    expected = {one.key(): one.partition() for one in records(server, f"{topic}-kafka", 7)}
    rows = spark.sql(VALUES.format(500, 3))
    rows.write.format("pentalog").mode("append").options(servers=server, topic=topic).save()
    found = records(server, topic, 7)
    assert len(found) == 500
    assert {one.key(): one.partition() for one in found} == expected


def test_rows_choose_their_topics(spark: SparkSession, broker: pentalog.Broker, topic: str) -> None:
    server = broker.address("kafka")
    rows = spark.sql(
        f"select if(id % 2 = 0, '{topic}-even', null) as topic, string(id) as value from range(10)"
    )
    rows.write.format("pentalog").mode("append").options(
        servers=server, topic=f"{topic}-odd"
    ).save()
    for name, remainder in (("even", 0), ("odd", 1)):
        values = sorted(int(one.value()) for one in records(server, f"{topic}-{name}", 1))
        assert values == list(range(remainder, 10, 2))


def test_a_named_batch_is_written_once(
    spark: SparkSession, broker: pentalog.Broker, topic: str
) -> None:
    server = broker.address("kafka")
    make_topic(server, topic, 2)
    options = {"servers": server, "topic": topic, "query": topic}

    def write(batch: int) -> None:
        rows = spark.sql(VALUES.format(100, 2))
        rows.write.format("pentalog").mode("append").options(**options, batch=batch).save()

    for batch in (0, 0, 1, 1, 1):
        write(batch)
    counts = Counter(one.key() for one in records(server, topic, 2))
    assert len(counts) == 100
    assert set(counts.values()) == {2}
    with pytest.raises(Exception, match="comes after batch 1 was written"):
        write(0)


def test_a_failed_write_leaves_nothing(
    spark: SparkSession, broker: pentalog.Broker, topic: str
) -> None:
    server = broker.address("kafka")
    make_topic(server, topic, 2)
    rows = spark.sql(
        "select string(id) as key, if(id = 999, raise_error('enough'), 'v') as value "
        "from range(0, 1000, 1, 2)"
    )
    with pytest.raises(Exception, match="enough"):
        rows.write.format("pentalog").mode("append").options(servers=server, topic=topic).save()
    assert records(server, topic, 2) == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select 1 as value", "column value int cannot be written"),
        ("select 'a' as value, 1 as amount", "column amount int cannot be written"),
        ("select 'a' as key", "no column value"),
        ("select 'a' as value, 9 as partition", "partitions 0..0; a null lets the key choose"),
    ],
)
def test_rows_that_are_no_records_are_refused(
    spark: SparkSession, broker: pentalog.Broker, topic: str, query: str, message: str
) -> None:
    writer = spark.sql(query).write.format("pentalog").mode("append")
    with pytest.raises(Exception, match=message):
        writer.options(servers=broker.address("kafka"), topic=topic).save()


def test_a_stream_is_written_once_whatever_is_repeated(
    spark: SparkSession, broker: pentalog.Broker, topic: str, tmp_path: Path
) -> None:
    server = broker.address("kafka")
    make_topic(server, topic, 2)
    make_topic(server, f"{topic}-out", 3)
    spark.sql(VALUES.format(1000, 2)).write.format("pentalog").mode("append").options(
        servers=server, topic=topic
    ).save()
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        source = spark.readStream.format("pentalog").options(
            servers=server, topics=topic, maxRowsPerTrigger=300
        )
        rows = source.load().selectExpr("key", "upper(cast(value as string)) as value")
        writer = rows.writeStream.format("pentalog").options(servers=server, topic=f"{topic}-out")
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query.start().awaitTermination()

    run()
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    assert last >= 3
    # As if the driver had died between the topic's commit and Spark's own.
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink()
    run()
    found = records(server, f"{topic}-out", 3)
    assert sorted(int(one.key()) for one in found) == list(range(1000))
    assert {one.value() for one in found} == {b"VALUE %d" % number for number in range(1000)}

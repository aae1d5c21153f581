"""`spark.readStream.format("pentalog")`: limits, a frozen end, resuming, lag, groups and loss."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drivers import Java
from pyspark.errors import PySparkException
from topic_samples import fill, now_ms, published, records

import pentalog
from pentalog.clients.kafka import LATEST, Cluster, GroupOffset, committed
from pentalog.model import batch
from pentalog.model.types import Partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


@pytest.fixture
def cluster(broker: pentalog.Broker) -> Iterator[Cluster]:
    with Cluster(broker.address("kafka")) as cluster:
        yield cluster


class Stream:
    """One topic as a stream into Parquet files, run up to its end again and again."""

    def __init__(self, spark: SparkSession, folder: Path, topic: str, **options: str) -> None:
        self.spark = spark
        self.folder = folder
        self.options = {"topics": topic, "columns": "partition,offset,value", **options}

    def run(self, **options: str) -> list[Any]:
        """Up to the present end; the progress of each trigger."""
        query = self.start(**options)
        query.awaitTermination(120)
        assert not query.isActive
        return list(query.recentProgress)

    def start(self, **options: str) -> StreamingQuery:
        reader = self.spark.readStream.format("pentalog").options(**{**self.options, **options})
        writer = reader.load().writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        return writer.start(str(self.folder / "rows"))

    def offsets(self) -> dict[int, list[int]]:
        """What has arrived, by partition."""
        found: dict[int, list[int]] = {}
        for row in self.spark.read.parquet(str(self.folder / "rows")).collect():
            found.setdefault(row.partition, []).append(row.offset)
        return {index: sorted(seen) for index, seen in found.items()}


def rows_of(progress: list[Any]) -> list[int]:
    return [one["numInputRows"] for one in progress if one["numInputRows"]]


@pytest.mark.parametrize("way", ["servers", "data"])
def test_a_backlog_is_read_in_bounded_triggers_and_then_goes_on(
    spark: SparkSession,
    broker: pentalog.Broker,
    cluster: Cluster,
    topic: str,
    tmp_path: Path,
    way: str,
) -> None:
    fill(cluster, topic)
    places = [Partition(topic, 0), Partition(topic, 1)]
    published(broker.data, dict.fromkeys(places, 1000))
    where = {"servers": broker.address("kafka"), "data": str(broker.data)}[way]
    stream = Stream(spark, tmp_path, topic, maxRowsPerTrigger="700", **{way: where})
    progress = stream.run()
    assert rows_of(progress) == [700, 700, 600]
    assert json.loads(progress[0]["sources"][0]["latestOffset"]) == {
        f"{topic}/0": 1000,
        f"{topic}/1": 1000,
    }
    more = batch.build(records(0, 50), timestamp_ms=now_ms())
    cluster.produce(places[1], bytes(more))
    published(broker.data, {places[1]: 1050})
    assert rows_of(stream.run()) == [50]
    assert stream.offsets() == {0: list(range(1000)), 1: list(range(1050))}
    assert rows_of(stream.run()) == []


def test_triggers_are_bounded_by_bytes(
    spark: SparkSession, broker: pentalog.Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, partitions=1, batches=100, codecs=(0,))
    published(broker.data, {Partition(topic, 0): 10_000})
    stream = Stream(spark, tmp_path, topic, data=str(broker.data), maxBytesPerTrigger="150k")
    taken = rows_of(stream.run())
    assert 3 <= len(taken) <= 8
    assert sum(taken) == 10_000
    assert stream.offsets() == {0: list(range(10_000))}


def test_partitions_that_come_later_are_read_from_their_beginning(
    spark: SparkSession, broker: pentalog.Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    fill(cluster, topic, partitions=1)
    stream = Stream(spark, tmp_path, topic, servers=broker.address("kafka"))
    stream.run()
    admin = AdminClient({"bootstrap.servers": broker.address("kafka")})
    for future in admin.create_partitions([NewPartitions(topic, 2)]).values():
        future.result(20)
    more = batch.build(records(0, 30), timestamp_ms=now_ms())
    cluster.produce(Partition(topic, 1), bytes(more))
    stream.run()
    assert stream.offsets() == {0: list(range(1000)), 1: list(range(30))}


def test_a_group_shows_how_far_the_stream_is_and_holds_its_lease(
    spark: SparkSession, broker: pentalog.Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, partitions=1)
    group, at = f"group-{topic}", Partition(topic, 0)
    where = {"servers": broker.address("kafka"), "group": group, "lease": "1h", "leaseBytes": "1m"}
    stream = Stream(spark, tmp_path, topic, maxRowsPerTrigger="400", **where)
    stream.run()
    found = committed(cluster, group)[at]
    assert found.offset == 1000
    assert found.metadata == "pentalog.lease=3600000;bytes=1048576"
    assert isinstance(found, GroupOffset)


def test_a_stream_begins_where_it_is_told(
    spark: SparkSession, broker: pentalog.Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic)
    starting = json.dumps({topic: {"0": 990, "1": "latest"}})
    stream = Stream(spark, tmp_path, topic, servers=broker.address("kafka"), starting=starting)
    stream.run()
    assert stream.offsets() == {0: list(range(990, 1000))}


def test_what_is_lost_between_two_runs_is_named_or_passed_over(
    spark: SparkSession, broker: pentalog.Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    from test_source_batch import _delete_before

    fill(cluster, topic, partitions=1, batches=2, codecs=(0,))
    at = Partition(topic, 0)
    stream = Stream(spark, tmp_path, topic, servers=broker.address("kafka"))
    stream.run()
    fill(cluster, topic, partitions=1, batches=8, codecs=(0,))
    assert cluster.offsets({at: LATEST}) == {at: 1000}
    _delete_before(broker, at, 450)
    with pytest.raises(PySparkException, match=r"offsets 200\.\.449 are lost"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.offsets() == {0: [*range(200), *range(450, 1000)]}


_VICTIM = """
    import sys
    from pentalog.tables.session import session
    spark = session(master="local[2]", quick=True)
    servers, topic, folder = sys.argv[1:]
    rows = spark.readStream.format("pentalog").option("servers", servers)
    rows = rows.option("topics", topic).option("maxRowsPerTrigger", "200").load()
    query = rows.writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
    query = query.trigger(availableNow=True).start(folder + "/rows")
    while query.isActive:
        for progress in query.recentProgress:
            print(progress["batchId"], flush=True)
        query.awaitTermination(0.1)
    """


def test_a_killed_stream_goes_on_without_a_gap_or_a_double(
    spark: SparkSession,
    broker: pentalog.Broker,
    cluster: Cluster,
    java: Java,
    topic: str,
    tmp_path: Path,
) -> None:
    fill(cluster, topic, partitions=2)
    program = tmp_path / "victim.py"
    program.write_text(textwrap.dedent(_VICTIM))
    command = [sys.executable, str(program), broker.address("kafka"), topic, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        env={**os.environ, **java.environment()},
    ) as victim:  # fmt: skip
        assert victim.stdout is not None
        deadline = time.monotonic() + 600
        for line in victim.stdout:
            if int(line) >= 2 or time.monotonic() > deadline:
                break
        # Java alone would go on: nothing of this query is done in Python.
        java.kill()
        os.killpg(victim.pid, signal.SIGKILL)
    stream = Stream(spark, tmp_path, topic, servers=broker.address("kafka"), columns="")
    stream.options = {"servers": broker.address("kafka"), "topics": topic}
    stream.run(maxRowsPerTrigger="1000")
    assert stream.offsets() == {0: list(range(1000)), 1: list(range(1000))}

"""The source reading from Apache Kafka itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from topic_samples import fill, records, transact

from pentalog.clients.kafka import LATEST, Cluster, GroupOffset, commit, committed
from pentalog.model.types import Partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_apache_kafka_is_read_like_our_own(
    spark: SparkSession, apache: str, topic: str, tmp_path: Path
) -> None:
    at = Partition(topic, 1)
    with Cluster(apache) as cluster:
        fill(cluster, topic)
        transact(cluster, at, f"{topic}-a", b"no", b"no", commit=False)
        transact(cluster, at, f"{topic}-a", b"yes", commit=True)
        ends = cluster.offsets({at: LATEST, Partition(topic, 0): LATEST})
        assert ends == {at: 1005, Partition(topic, 0): 1000}
        commit(cluster, topic, {at: GroupOffset(7, "note")})
        assert committed(cluster, topic) == {at: GroupOffset(7, "note")}
    source = spark.read.format("pentalog").option("servers", apache).option("topics", topic)
    rows = source.load().orderBy("partition", "offset").collect()
    assert [row.offset for row in rows] == [*range(1000), *range(1000), 1003]
    assert [row.value for row in rows[:1000]] == [one.value for one in records(0, 1000)]
    assert bytes(rows[-1].value) == b"yes"
    stream = spark.readStream.format("pentalog").option("servers", apache)
    stream = stream.option("topics", topic).option("maxRowsPerTrigger", "1200").load()
    writer = stream.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start(str(tmp_path / "rows"))
    query.awaitTermination(120)
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 2001

"""What Spark with Java and all Python workers spends on a topic, by our source and by others.

Every way reads the same topic of the same broker in the same session, one after the other, and the
cheapest of several runs counts.  CPU time is that of the driver and of every process it started,
the broker's left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cpu_clock
import machine
from pentalog.clients.kafka import Cluster
from pentalog.model import batch
from pentalog.model.types import Partition, Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "orders"
PARTITIONS = 2
BATCH_RECORDS = 150
JSON = "id BIGINT, amount DOUBLE, customer STRING, note STRING"
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
"""The newest of Spark's own connector that Maven Central gives us with everything it needs."""


class Cost(NamedTuple):
    name: str
    records: int
    cpu_s: float
    wall_s: float
    work: str
    """What is done: ours and the others' ways with the same word do the same."""
    ours: bool

    @property
    def per_million(self) -> float:
        return self.cpu_s / self.records * 1e6


class Topic(NamedTuple):
    address: str
    data: Path
    records: int


def fill(address: str, data: Path, records: int) -> Topic:
    """JSON documents of about 100 bytes, and one in ten thousand that is none."""
    now_ms = int(time.time() * 1000)
    whole = records // (BATCH_RECORDS * PARTITIONS) * BATCH_RECORDS * PARTITIONS
    with Cluster(address) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        for number, first in enumerate(range(0, whole, BATCH_RECORDS)):
            wanted = [_record(one) for one in range(first, first + BATCH_RECORDS)]
            made = bytes(batch.build(wanted, timestamp_ms=now_ms))
            cluster.produce(Partition(TOPIC, number % PARTITIONS), made, acks=1)
    return Topic(address, data, whole)


def _record(number: int) -> Record:
    value = b'{"id": %d, "amount": %d.25, "customer": "customer-%06d", "note": "%s"}' % (
        number, number % 1000, number % 5000, b"n" * (26 + number % 9),
    )  # fmt: skip
    return Record(b"not JSON" if number % 10_000 == 7 else value, b"key%05d" % (number % 1000))


def connector_jars() -> list[Path]:
    """The jars of Spark's own connector; none if Maven cannot get them."""
    folder = machine.CACHE / "spark-kafka"
    maven = shutil.which("mvn")
    if not folder.exists():
        if maven is None:
            return []
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            for one in CONNECTOR:
                got = subprocess.run(
                    [maven, "-q", "-B", "dependency:copy", f"-Dartifact={one}",
                     f"-DoutputDirectory={work}/jars"],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
                    env=os.environ,
                )  # fmt: skip
                if got.returncode:
                    return []
            (Path(work) / "jars").rename(folder)
    return sorted(folder.glob("*.jar"))


class Way(NamedTuple):
    """One way through Spark, to be measured."""

    name: str
    run: Callable[[], object]
    work: str
    ours: bool


class Bench(NamedTuple):
    """Where ways are measured."""

    spark: SparkSession
    topic: Topic
    folder: Path


def measured(
    ways: Sequence[Way], records: int, rounds: int, clock: cpu_clock.Clock
) -> Iterator[Cost]:
    """The cheapest run of each way, in rounds of all of them after one that does not count.

    Java compiles while it runs, and the ways share much of its code: whoever comes first would
    pay for the others.
    """
    found: list[list[tuple[float, float]]] = [[] for _ in ways]
    for number in range(rounds + 1):
        for way, costs in zip(ways, found, strict=True):
            begun = time.monotonic()
            clock.begin()
            way.run()
            wall_s = time.monotonic() - begun
            try:
                spent_s = clock.spent_s()
            except cpu_clock.Unaccounted as error:
                print(f"{way.name}: a run does not count: {error}")
                continue
            if number:
                costs.append((spent_s, wall_s))
    for way, costs in zip(ways, found, strict=True):
        if not costs:
            raise SystemExit(f"{way.name}: no run could be measured")
        yield Cost(way.name, records, *min(costs), way.work, way.ours)


def session(jars: list[Path]) -> SparkSession:
    from pentalog.tables.session import session as make

    settings = {"spark.jars": ",".join(map(str, jars))} if jars else {}
    return make(master="local[2]", name="benchmark", settings=settings)


def ours(bench: Bench) -> Iterator[Way]:
    from pentalog.tables import pipeline
    from pentalog.tables.runner import Runner

    spark, topic = bench.spark, bench.topic

    def read(columns: str, **place: str) -> None:
        options = {"topics": TOPIC, "columns": columns, **place}
        _discard(spark.read.format("pentalog").options(**options).load())

    few = "topic,partition,offset,timestamp,key,value"
    for way, place in (("Kafka door", {"servers": topic.address}),
                       ("segment files", {"data": str(topic.data)})):  # fmt: skip
        rows = partial(read, few, **place)
        yield Way(f"pentalog: to Spark's rows, {way}", rows, work="rows", ours=True)
    number = iter(range(1000))

    def run(decode: Mapping[str, Any]) -> None:
        into = str(bench.folder / f"lake{next(number)}")
        given = {"from": topic.address, "topics": [TOPIC], "into": into, "decode": decode}
        declared = pipeline.parse({"pipeline": {"orders": given}})["orders"]
        if not Runner(spark, [declared], once=True, report=lambda _: None).run():
            raise SystemExit("the pipeline did not come to its end")
        shutil.rmtree(into)

    for name, decode, work in (
        ("pentalog: pipeline to bronze and raw silver", {"format": "raw"}, "raw"),
        ("pentalog: pipeline to bronze, silver of JSON, dead letters",
         {"format": "json", "schema": JSON}, "json"),
    ):  # fmt: skip
        yield Way(name, partial(run, decode), work=work, ours=True)


def connector(bench: Bench) -> Iterator[Way]:
    """Spark's own connector, and Spark's own Parquet writer behind it.

    In batches it does less than a pipeline: it keeps no progress.  As a stream it has a checkpoint
    too, and writes both tables of a batch from `foreachBatch`, which is kept between them or read
    twice: what costs less counts.
    """
    where = {"kafka.bootstrap.servers": bench.topic.address, "subscribe": TOPIC}
    where["startingOffsets"] = "earliest"
    number = iter(range(1000))

    def source() -> DataFrame:
        options = {**where, "endingOffsets": "latest"}
        return bench.spark.read.format("kafka").options(**options).load()

    def stream(silver: Callable[[DataFrame], DataFrame], *, kept: bool) -> None:
        folder = bench.folder / f"stream{next(number)}"

        def take(rows: DataFrame, _: int) -> None:
            rows = rows.persist() if kept else rows
            _parquet(rows, folder / "bronze")
            _parquet(silver(rows), folder / "silver")
            if kept:
                rows.unpersist()

        rows = bench.spark.readStream.format("kafka").options(**where).load()
        query = rows.writeStream.foreachBatch(take).trigger(availableNow=True)
        query.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
        shutil.rmtree(folder)

    def batch(silver: Callable[[DataFrame], DataFrame]) -> None:
        _parquet(source(), bench.folder / "bronze")
        _parquet(silver(source()), bench.folder / "silver")

    yield Way(
        "Spark's connector: to Spark's rows", lambda: _discard(source()), work="rows", ours=False
    )
    for name, silver, work in (
        ("to Parquet as it is, and its columns to another", _few, "raw"),
        ("to Parquet as it is, and from JSON to another", _from_json, "json"),
    ):
        for how, kept in (("kept between", True), ("read twice", False)):
            streamed = partial(stream, silver, kept=kept)
            full = f"Spark's connector, a stream {name}, {how}"
            yield Way(full, streamed, work=work, ours=False)
        full = f"Spark's connector, in a batch {name}"
        yield Way(full, partial(batch, silver), work=f"{work} in a batch", ours=False)


def _few(rows: DataFrame) -> DataFrame:
    return rows.select("key", "value", "topic", "partition", "offset", "timestamp")


def _from_json(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    own = ("topic", "partition", "offset", "timestamp")
    parsed = f.from_json(f.col("value").cast("string"), JSON).alias("row")
    return rows.select(parsed, *own).select("row.*", *own)


def _parquet(rows: DataFrame, place: Path) -> None:
    rows.write.mode("overwrite").parquet(str(place))


def consumer(bench: Bench) -> Iterator[Way]:
    """Where the connector cannot be had: `foreachBatch` over confluent-kafka, written by Spark."""
    from pyspark.sql import functions as f

    spark, topic, folder = bench.spark, bench.topic, bench.folder
    number = iter(range(1000))
    raw_schema = "partition int, offset bigint, key binary, value binary"

    def run(write: Callable[[DataFrame], None]) -> None:
        ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()

        def take(_: DataFrame, batch_number: int) -> None:
            if batch_number == 0:
                write(spark.createDataFrame(_consumed(topic), raw_schema))

        query = ticks.writeStream.foreachBatch(take).option(
            "checkpointLocation", str(folder / f"checkpoint{next(number)}")
        )
        query.trigger(once=True).start().awaitTermination()

    def raw(rows: DataFrame) -> None:
        _parquet(rows, folder / "raw")

    def silver(rows: DataFrame) -> None:
        raw(rows)
        parsed = f.from_json(f.col("value").cast("string"), JSON).alias("row")
        kept = rows.select(parsed, "partition", "offset").select("row.*", "partition", "offset")
        _parquet(kept, folder / "silver")

    for name, write, work in (
        ("confluent-kafka in foreachBatch: to Spark's rows", _discard, "rows"),
        ("confluent-kafka in foreachBatch: to Parquet as it is", raw, "raw"),
        ("confluent-kafka in foreachBatch: to Parquet, and from JSON", silver, "json"),
    ):
        yield Way(name, partial(run, write), work=work, ours=False)


def _consumed(topic: Topic) -> list[tuple[int, int, bytes | None, bytes | None]]:
    from confluent_kafka import Consumer

    reader = Consumer(
        {"bootstrap.servers": topic.address, "group.id": f"costs-{time.monotonic_ns()}",
         "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )  # fmt: skip
    reader.subscribe([TOPIC])
    found: list[tuple[int, int, bytes | None, bytes | None]] = []
    while len(found) < topic.records:
        found += [
            (one.partition() or 0, one.offset() or 0, one.key(), one.value())
            for one in reader.consume(10_000, 5.0)
        ]
    reader.close()
    return found


def _discard(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()

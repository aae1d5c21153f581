"""What Spark with Java and all Python workers spends on a topic, by our source and by others.

Every way reads the same topic of the same broker in the same session, one after the other, and the
cheapest of several runs counts.  CPU time is that of the driver and of every process under it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


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
                )  # fmt: skip
                if got.returncode:
                    return []
            (Path(work) / "jars").rename(folder)
    return sorted(folder.glob("*.jar"))


def cpu_s() -> float:
    """CPU time of this process and everything under it, what has ended included."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                ticks[int(entry.name)] = sum(map(int, fields[11:15]))
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    total, waiting = 0, [os.getpid()]
    while waiting:
        one = waiting.pop()
        total += ticks.get(one, 0)
        waiting += children.get(one, [])
    return total / _TICKS_PER_S


def measured(
    name: str, topic: Topic, run: Callable[[], object], *, repeats: int, work: str, ours: bool
) -> Cost:
    """The cheapest of several runs after one that does not count: Java compiles while it runs."""
    found: list[tuple[float, float]] = []
    for number in range(repeats + 1):
        begun, begun_cpu_s = time.monotonic(), cpu_s()
        run()
        if number:
            found.append((cpu_s() - begun_cpu_s, time.monotonic() - begun))
    least, wall_s = min(found)
    return Cost(name, topic.records, least, wall_s, work, ours)


def session(jars: list[Path]) -> SparkSession:
    from pentalog.tables.session import session as make

    settings = {"spark.jars": ",".join(map(str, jars))} if jars else {}
    return make(master="local[2]", name="benchmark", settings=settings)


def ours(spark: SparkSession, topic: Topic, folder: Path, repeats: int) -> Iterator[Cost]:
    from pentalog.tables import pipeline
    from pentalog.tables.runner import Runner

    def source(columns: str, **place: str) -> DataFrame:
        options = {"topics": TOPIC, "columns": columns, **place}
        return spark.read.format("pentalog").options(**options).load()

    few = "topic,partition,offset,timestamp,key,value"
    for way, place in (("Kafka door", {"servers": topic.address}),
                       ("segment files", {"data": str(topic.data)})):  # fmt: skip
        yield measured(
            f"pentalog: to Spark's rows, {way}", topic,
            lambda place=place: _discard(source(few, **place)),  # type: ignore[misc]
            repeats=repeats, work="rows", ours=True,
        )  # fmt: skip
    number = iter(range(1000))

    def run(decode: Mapping[str, Any]) -> None:
        into = str(folder / f"lake{next(number)}")
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
        yield measured(
            name, topic, lambda decode=decode: run(decode),  # type: ignore[misc]
            repeats=repeats, work=work, ours=True,
        )  # fmt: skip


def connector(spark: SparkSession, topic: Topic, folder: Path, repeats: int) -> Iterator[Cost]:
    """Spark's own connector, and Spark's own Parquet writer behind it."""
    from pyspark.sql import functions as f

    def source() -> DataFrame:
        options = {"kafka.bootstrap.servers": topic.address, "subscribe": TOPIC}
        options |= {"startingOffsets": "earliest", "endingOffsets": "latest"}
        return spark.read.format("kafka").options(**options).load()

    def raw() -> None:
        source().write.mode("overwrite").parquet(str(folder / "raw"))

    def twice() -> None:
        raw()
        few = source().select("key", "value", "topic", "partition", "offset", "timestamp")
        few.write.mode("overwrite").parquet(str(folder / "silver"))

    def silver() -> None:
        raw()
        parsed = f.from_json(f.col("value").cast("string"), JSON).alias("row")
        rows = source().select(parsed, "topic", "partition", "offset", "timestamp")
        kept = rows.select("row.*", "topic", "partition", "offset", "timestamp")
        kept.write.mode("overwrite").parquet(str(folder / "silver"))

    for name, run, work in (
        ("Spark's connector: to Spark's rows", lambda: _discard(source()), "rows"),
        ("Spark's connector: to Parquet as it is", raw, "one table"),
        ("Spark's connector: to Parquet as it is, and its columns to another", twice, "raw"),
        ("Spark's connector: to Parquet as it is, and from JSON", silver, "json"),
    ):
        yield measured(name, topic, run, repeats=repeats, work=work, ours=False)


def consumer(spark: SparkSession, topic: Topic, folder: Path, repeats: int) -> Iterator[Cost]:
    """Where the connector cannot be had: `foreachBatch` over confluent-kafka, written by Spark."""
    from pyspark.sql import functions as f

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
        rows.write.mode("overwrite").parquet(str(folder / "raw"))

    def silver(rows: DataFrame) -> None:
        raw(rows)
        parsed = f.from_json(f.col("value").cast("string"), JSON).alias("row")
        kept = rows.select(parsed, "partition", "offset").select("row.*", "partition", "offset")
        kept.write.mode("overwrite").parquet(str(folder / "silver"))

    for name, write, work in (
        ("confluent-kafka in foreachBatch: to Spark's rows", _discard, "rows"),
        ("confluent-kafka in foreachBatch: to Parquet as it is", raw, "raw"),
        ("confluent-kafka in foreachBatch: to Parquet, and from JSON", silver, "json"),
    ):
        yield measured(
            name, topic, lambda write=write: run(write),  # type: ignore[misc]
            repeats=repeats, work=work, ours=False,
        )  # fmt: skip


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

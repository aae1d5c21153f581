"""`spark.read.format("pentalog")`: the same rows from files and from the door, and only those."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from topic_samples import compacted, fill, nothing_dirty, now_ms, published, records, transact

import pentalog
from pentalog.clients.kafka import EARLIEST, LATEST, Cluster
from pentalog.model import batch
from pentalog.model.types import Partition, Record
from pentalog.tables.options import OptionRefused, read_options
from pentalog.tables.source import FilteredReader, Pentalog
from pentalog.tables.splits import SplitReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Read = Callable[..., "DataFrame"]


@pytest.fixture
def cluster(broker: pentalog.Broker) -> Any:
    with Cluster(broker.address("kafka")) as cluster:
        yield cluster


@pytest.fixture(params=["servers", "data"])
def read(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    broker: pentalog.Broker,
    cluster: Cluster,
    topic: str,
) -> Read:
    """Reads the topic through the door, or from the files."""

    def load(ddl: str | None = None, /, **options: str) -> DataFrame:
        names = options.pop("topics", topic).split(",")
        places = [
            Partition(name, index) for name in names for index in cluster.topic(name).partitions
        ]
        published(broker.data, cluster.offsets(dict.fromkeys(places, LATEST)))
        where = {"servers": broker.address("kafka"), "data": str(broker.data)}[request.param]
        reader = spark.read.format("pentalog").options(**options)
        reader = reader.option(request.param, where).option("topics", ",".join(names))
        return (reader.schema(ddl) if ddl else reader).load()

    return load


def test_every_column_of_every_record(cluster: Cluster, read: Read, topic: str) -> None:
    begun = fill(cluster, topic)
    rows = read().orderBy("partition", "offset").collect()
    assert len(rows) == 2 * 1000
    for index in (0, 1):
        part = [row for row in rows if row.partition == index]
        assert [row.offset for row in part] == list(range(1000))
        for number, (row, record) in enumerate(zip(part, records(0, 1000), strict=True)):
            assert (row.topic, row.door) == (topic, "kafka")
            assert row.key == record.key
            assert row.value == record.value
            assert [(one.key, one.value) for one in row.headers] == list(record.headers)
            assert row.cursus_seq == (number if number % 3 == 0 else None)
            when = row.timestamp.replace(tzinfo=UTC).timestamp() * 1000
            assert round(when) == begun + number // 100 * 1000


def test_aborted_records_and_markers_never_appear(cluster: Cluster, read: Read, topic: str) -> None:
    cluster.create_topic(topic, 1)
    at = Partition(topic, 0)
    transact(cluster, at, f"{topic}-a", b"a1", b"a2", commit=True)
    transact(cluster, at, f"{topic}-b", b"no", b"no", commit=False)
    cluster.produce(at, bytes(batch.build([Record(b"plain")], timestamp_ms=now_ms())))
    transact(cluster, at, f"{topic}-b", b"b1", commit=True)
    rows = read(columns="offset,value").orderBy("offset").collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == [
        (0, b"a1"),
        (1, b"a2"),
        (6, b"plain"),
        (7, b"b1"),
    ]
    spans = read(view="offsets").orderBy("start").collect()
    assert [(row.start, row.end, row.kind) for row in spans] == [
        (0, 2, "record"),
        (2, 3, "control"),
        (3, 5, "aborted"),
        (5, 6, "control"),
        (6, 8, "record"),
        (8, 9, "control"),
    ]


def test_ranges_are_named_in_every_way(cluster: Cluster, read: Read, topic: str) -> None:
    begun = fill(cluster, topic, codecs=(0,))
    moment = datetime.fromtimestamp((begun + 4000) / 1000, UTC).isoformat()

    def offsets(**options: str) -> dict[int, tuple[int, int]]:
        rows = read(columns="partition,offset", **options).collect()
        found: dict[int, list[int]] = {}
        for row in rows:
            found.setdefault(row.partition, []).append(row.offset)
        return {index: (min(seen), max(seen) + 1) for index, seen in found.items()}

    assert offsets(starting=moment) == {0: (400, 1000), 1: (400, 1000)}
    assert offsets(startingTimestampMs=str(begun + 9000)) == {0: (900, 1000), 1: (900, 1000)}
    assert offsets(endingTimestampMs=str(begun + 2000)) == {0: (0, 200), 1: (0, 200)}
    assert offsets(starting="latest") == {}
    places = json.dumps({topic: {"0": 950, "1": "latest"}})
    assert offsets(starting=places) == {0: (950, 1000)}
    assert offsets(ending=json.dumps({topic: {"0": 7, "1": "earliest"}})) == {0: (0, 7)}


def test_large_partitions_are_cut_into_splits(cluster: Cluster, read: Read, topic: str) -> None:
    fill(cluster, topic, partitions=1, batches=100, codecs=(0,))
    rows = read(splitBytes="100k", columns="offset")
    assert 3 <= rows.rdd.getNumPartitions() <= 20
    assert rows.count() == rows.distinct().count() == 10_000
    assert read(minPartitions="7", columns="offset").rdd.getNumPartitions() == 7


def test_columns_have_the_types_that_are_asked_for(
    cluster: Cluster, read: Read, topic: str
) -> None:
    cluster.create_topic(topic, 1)
    values = [
        b'{"id": 1, "text": "a", "more": [1]}',
        b"not json",
        None,
        b"\xff\xfe",
        b'{"id": "x"}',
    ]
    wanted = [Record(value, b"k") for value in values]
    at = Partition(topic, 0)
    cluster.produce(at, bytes(batch.build(wanted, timestamp_ms=now_ms())))
    texts = read(decode="utf8", columns="key,value", splitBytes="1g").collect()
    assert [row.value for row in texts][:3] == [
        '{"id": 1, "text": "a", "more": [1]}',
        "not json",
        None,
    ]
    assert texts[3].value == "��"
    decoded = read(decode="json", schema="id BIGINT, text STRING", columns="value").collect()
    assert decoded[0].value.asDict() == {"id": 1, "text": "a"}
    assert [row.value for row in decoded[1:]] == [None] * 4
    chosen = read("value string, offset bigint")
    assert chosen.columns == ["value", "offset"]
    assert chosen.first()[1] == 0


def test_documents_that_are_all_sound_are_read_at_once(
    cluster: Cluster, read: Read, topic: str
) -> None:
    cluster.create_topic(topic, 1)
    wanted = [Record(b'{"id": %d, "deep": {"x": [%d, null]}}' % (n, n)) for n in range(500)]
    at = Partition(topic, 0)
    cluster.produce(at, bytes(batch.build(wanted, timestamp_ms=now_ms())))
    schema = "id BIGINT, deep STRUCT<x: ARRAY<BIGINT>>, absent DOUBLE"
    rows = read(decode="json", schema=schema, columns="offset,value").collect()
    assert [row.value.id for row in rows] == list(range(500))
    assert [row.value.deep.x for row in rows] == [[n, None] for n in range(500)]
    assert {row.value.absent for row in rows} == {None}


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_filters_are_answered_rightly(
    cluster: Cluster, read: Read, topic: str, pushdown: str
) -> None:
    begun = fill(cluster, topic, codecs=(0,))
    kept = read(pushdown="false")

    def rows() -> DataFrame:
        return read(pushdown=pushdown) if pushdown == "true" else kept

    moment = datetime.fromtimestamp((begun + 7000) / 1000, UTC)
    late = rows()
    query = late.where(late.timestamp >= moment).where("partition = 1 and offset < 720")
    assert sorted(row.offset for row in query.collect()) == list(range(700, 720))
    assert rows().where("partition in (0, 5) and offset = 3").count() == 1
    assert rows().where("offset > 990 and offset <= 995 or offset = 1").count() == 12
    assert rows().where("topic = 'another'").count() == 0
    assert rows().where("value is null").count() == 2 * 59


def test_a_pushed_filter_reads_fewer_bytes(
    spark: SparkSession, broker: pentalog.Broker, cluster: Cluster, topic: str
) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual
    from pyspark.sql.types import StructType

    fill(cluster, topic, batches=100, codecs=(0,))
    ends = cluster.offsets({Partition(topic, 0): LATEST, Partition(topic, 1): LATEST})
    published(broker.data, ends)

    def read_bytes(*filters: Any) -> int:
        options = read_options({"data": str(broker.data), "topics": topic})
        reader = FilteredReader(StructType().add("offset", "long"), options)
        assert list(reader.pushFilters(list(filters))) == []
        return sum(feed_bytes(split, options) for split in reader.partitions())

    whole = read_bytes()
    assert 0 < read_bytes(EqualTo(("partition",), 1)) < whole * 0.6
    late = (EqualTo(("partition",), 1), GreaterThanOrEqual(("offset",), 9_900))
    assert 0 < read_bytes(*late) < whole * 0.05


def feed_bytes(split: Any, options: Any) -> int:
    from pyspark.sql.types import StructType

    from pentalog.log.reader import SegmentFeed
    from pentalog.tables import segments
    from pentalog.tables.rows import RowMaker

    feeds: list[SegmentFeed] = []

    class Counted(segments.DirectoryOrigin):
        def feed(self, at: Partition, low: int, high: int) -> Any:
            feed = super().feed(at, low, high)
            feeds.append(feed._feed)  # type: ignore[attr-defined]
            return feed

    maker = RowMaker(StructType().add("offset", "long"), rows_per_batch=1000)
    list(SplitReader(split, maker, options).read(Counted(options.data)))
    return sum(feed.read_bytes for feed in feeds)


def test_what_is_lost_is_named_or_passed_over(
    spark: SparkSession, broker: pentalog.Broker, cluster: Cluster, topic: str
) -> None:
    fill(cluster, topic, partitions=1, codecs=(0,))
    at = Partition(topic, 0)
    _delete_before(broker, at, 350)
    assert cluster.offsets({at: EARLIEST}) == {at: 350}
    given = json.dumps({topic: {"0": 120}})
    for where in ({"servers": broker.address("kafka")}, {"data": str(broker.data)}):
        published(broker.data, {at: 1000})
        _published_start(broker, at, 350)
        reader = spark.read.format("pentalog").options(**where).option("topics", topic)
        reader = reader.option("starting", given).option("columns", "offset")
        with pytest.raises(PySparkException, match=r"offsets 120\.\.349 are lost"):
            reader.load().count()
        lenient = reader.option("failOnDataLoss", "false").load()
        assert lenient.count() == 650


def _delete_before(broker: pentalog.Broker, at: Partition, offset: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.address("kafka")})
    place = TopicPartition(at.topic, at.index, offset)
    for future in admin.delete_records([place]).values():
        future.result(20)


def _published_start(broker: pentalog.Broker, at: Partition, start: int) -> None:
    from pentalog.log.reader import DirectoryReader

    deadline = time.monotonic() + 600
    while DirectoryReader(broker.data).marks()[at].start < start:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_patterns_choose_topics(cluster: Cluster, read: Read, topic: str) -> None:
    for name in (topic, f"{topic}.dlq"):
        fill(cluster, name, partitions=1, batches=1)
    rows = read(topics=f"{topic},{topic}.dlq")
    assert rows.select("topic").distinct().count() == 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"topics": "t"}, "servers"),
        ({"servers": "x:1"}, "topics"),
        ({"servers": "x:1", "topics": "t", "startng": "x"}, "did you mean 'starting'"),
        ({"servers": "x:1", "topics": "t", "columns": "offset,valu"}, "no column 'valu'"),
        ({"servers": "x:1", "topics": "t", "decode": "xml"}, "none, utf8, json, cursus"),
        ({"servers": "x:1", "topics": "t", "decode": "json"}, "needs a schema"),
        ({"servers": "x:1", "topics": "t", "isolation": "uncommitted"}, "committed"),
        ({"data": "/", "topics": "t", "group": "g"}, "group needs servers"),
        ({"servers": "x:1", "topics": "t", "lease": "1h"}, "lease needs a group"),
        ({"servers": "x:1", "topics": "t", "splitBytes": "many"}, "64m"),
    ],
)
def test_options_are_refused_with_what_would_do(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionRefused, match=complaint):
        Pentalog(options).schema()


def test_a_refusal_comes_through_spark(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="did you mean 'starting'"):
        spark.read.format("pentalog").options(servers="x:1", topics="t", startng="x").load()


def test_a_compacted_topic_is_read_the_same_both_ways(
    spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    at, data = Partition(topic, 0), tmp_path / "data"
    compact(data, at)
    with pentalog.Broker(data) as broker:
        published(data, {at: 600})

        def rows(where: dict[str, str], **options: str) -> Any:
            reader = spark.read.format("pentalog").options(**where, **options)
            return reader.option("topics", topic).load()

        ways = ({"servers": broker.address("kafka")}, {"data": str(data)})
        read, other = (rows(way).orderBy("offset").collect() for way in ways)
        assert read == other
        assert len(read) <= 200
        assert {bytes(row.key) for row in read} == {b"k%d" % number for number in range(10)}
        spans = [rows(way, view="offsets").orderBy("start").collect() for way in ways]
        for found in spans:
            assert found[0].start == 0
            assert found[-1].end == 600
            assert all(one.end == other.start for one, other in pairwise(found))
            counted = sum(row.end - row.start for row in found if row.kind == "record")
            assert counted == len(read)
            assert {row.kind for row in found} == {"record", "missing"}


def compact(data: Path, at: Partition) -> None:
    """Write 600 records of ten keys, and compact them to a third or less."""
    policy = {
        "cleanup.policy": "compact",
        "segment.bytes": "20000",
        "min.cleanable.dirty.ratio": "0.01",
    }
    settings: dict[str, Any] = {"housekeeping_interval_ms": 50}
    with pentalog.Broker(data, **settings) as broker, Cluster(broker.address("kafka")) as cluster:
        cluster.create_topic(at.topic, 1, policy)
        written = 0
        for number in range(300):
            pair = [Record(b"v%d" % number * 50, b"k%d" % (number % 10)) for _ in range(2)]
            encoded = bytes(batch.build(pair, timestamp_ms=now_ms()))
            cluster.produce(at, encoded)
            written += len(encoded)
        compacted(data, at.topic, bytes_max=written // 3)
        # Otherwise the next broker goes on with it, a second after its start.
        nothing_dirty(data, at)

"""SQL over live topics and over tables."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from drivers import Java

import pentalog
from pentalog.cli import sql
from pentalog.tables import pipeline
from pentalog.tables.catalog import Catalog, Places, UnknownName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PIPELINE = """
[pipeline.{name}]
from = "{server}"
topics = ["{topic}"]
into = "{into}"
decode = {{ format = "json", schema = "id BIGINT, amount DOUBLE" }}
"""


def fill(server: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": server})
    for number in range(count):
        value = json.dumps({"id": number, "amount": number / 2}).encode()
        producer.produce(topic, key=str(number % 3).encode(), value=value)
    producer.produce(topic, key="ü".encode(), value=b"poison")
    assert producer.flush(30) == 0


@pytest.fixture
def places(broker: pentalog.Broker) -> Places:
    return Places(servers=broker.address("kafka"))


def test_topics_by_name(spark: SparkSession, places: Places, topic: str) -> None:
    regular = topic.replace("-", "_")
    for name in (regular, topic, f"{topic}.dots"):
        fill(places.servers, name, 10)
    catalog = Catalog(spark, places)
    # A name Spark allows, one it does not, under another name, in a subquery and not in a text.
    found = catalog.sql(
        f"""with counted as (select count(*) as n from topic.{regular})
            select (select n from counted) as first,
                   (select count(*) from topic.`{topic}` t where t.offset < 5) as second,
                   (select max(`{topic}.dots`.offset) from topic.`{topic}.dots`) as third,
                   'topic.{topic}' as text, 'Ü𝄞' as wide"""
    ).collect()
    assert [tuple(row) for row in found] == [(11, 5, 10, f"topic.{topic}", "Ü𝄞")]
    fill(places.servers, regular, 3)
    assert catalog.sql(f"select count(*) from topic.{regular}").collect()[0][0] == 15


def plan_of(rows: DataFrame) -> str:
    return str(rows._jdf.queryExecution().executedPlan().toString())


def test_filters_and_columns_reach_the_source(
    spark: SparkSession, places: Places, topic: str
) -> None:
    fill(places.servers, topic, 10)
    catalog = Catalog(spark, places)
    rows = catalog.sql(f"select value from topic.`{topic}` where offset >= 8 and offset < 10")
    assert rows.count() == 2
    # What the source has taken over, Spark does not filter again.
    plan = plan_of(rows)
    assert ">= 8" not in plan
    assert "value#" in plan
    assert "headers#" not in plan
    # Of a topic that is read twice, each time other offsets count.
    twice = catalog.sql(
        f"""with t as (select offset from topic.`{topic}`)
            select (select count(*) from t where offset < 3) as low,
                   (select count(*) from t where offset >= 4) as high"""
    )
    assert [tuple(row) for row in twice.collect()] == [(3, 7)]
    pairs = catalog.sql(
        f"""select count(*) from topic.`{topic}` a join topic.`{topic}` b
            on a.key = b.key where a.offset < 3 and b.offset >= 3"""
    )
    assert pairs.collect()[0][0] == 7
    full = catalog.sql(f"select count(*), max(length(value)) from topic.`{topic}`")
    assert tuple(full.collect()[0]) == (11, 24)


def test_what_is_not_there_is_named(spark: SparkSession, places: Places, topic: str) -> None:
    catalog = Catalog(spark, places)
    with pytest.raises(UnknownName, match=f"no topic '{topic}' at {places.servers}"):
        catalog.sql(f"select * from topic.`{topic}`")
    with pytest.raises(UnknownName, match=r"no pipeline has a table table\.nothing"):
        catalog.sql("select * from table.nothing")
    with pytest.raises(UnknownName, match=r"there is no nowhere; topics are topic\.NAME"):
        catalog.sql("select * from nowhere")


def test_tables_of_pipelines(
    spark: SparkSession, broker: pentalog.Broker, topic: str, tmp_path: Path
) -> None:
    from pentalog.tables import job

    server = broker.address("kafka")
    fill(server, topic, 10)
    file = tmp_path / "pipeline.toml"
    file.write_text(
        PIPELINE.format(name="sold", server=server, topic=topic, into=tmp_path / "sold")
        + PIPELINE.format(name="not-run", server=server, topic=topic, into=tmp_path / "not-run")
    )
    pipelines = pipeline.load(file)
    job.start(spark, pipelines["sold"], once=True).awaitTermination()
    catalog = Catalog(spark, Places(pipelines=pipelines))
    row = catalog.sql(
        f"""select (select sum(amount) from table.sold) as silver,
                   (select count(*) from table.sold_bronze) as bronze,
                   (select count(*) from table.sold_dead_letters) as dead,
                   (select count(*) from topic.`{topic}`) as live"""
    ).first()
    assert row is not None
    assert tuple(row) == (22.5, 11, 1, 11)
    fill(server, topic, 1)
    job.start(spark, pipelines["sold"], once=True).awaitTermination()
    assert catalog.sql("select count(*) from table.sold").collect()[0][0] == 11
    with pytest.raises(Exception, match="no table yet; run the pipeline not-run"):
        catalog.sql("select * from table.`not-run`")
    same = pentalog.spark(config=file)
    assert same.sql("select count(*) from table.sold").collect()[0][0] == 11
    assert same.table("table.sold_bronze").count() == 13


def test_streams_follow_topics(spark: SparkSession, places: Places, topic: str) -> None:
    fill(places.servers, topic, 5)
    catalog = Catalog(spark, places)
    rows = catalog.stream(
        f"select key, count(*) as n from topic.`{topic}` group by key", starting="earliest"
    )
    assert rows.isStreaming
    query = rows.writeStream.format("memory").queryName("followed").outputMode("complete").start()
    try:
        query.processAllAvailable()
        fill(places.servers, topic, 1)
        query.processAllAvailable()
        counts = {bytes(row.key): row.n for row in spark.table("followed").collect()}
        assert counts == {b"0": 3, b"1": 2, b"2": 1, "ü".encode(): 2}
    finally:
        query.stop()


def test_following_ends_quietly_on_interrupt(
    spark: SparkSession,
    places: Places,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(places.servers, topic, 2)
    printed = threading.Event()

    class Shown(io.StringIO):
        def write(self, text: str) -> int:
            count = super().write(text)
            if "\n" in text:
                printed.set()
            return count

    shown = Shown()
    monkeypatch.setattr(sys, "stdout", shown)
    before = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        printed.wait(120)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        sql._follow(
            Catalog(spark, places), f"select offset from topic.`{topic}`", "earliest", "json"
        )
    finally:
        interrupting.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert shown.getvalue().splitlines()[0] == '{"offset": 0}'
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


def test_the_command(broker: pentalog.Broker, java: Java, topic: str, tmp_path: Path) -> None:
    server = broker.address("kafka")
    fill(server, topic, 2)
    queries = f"""select offset, key, value from topic.`{topic}` order by offset; -- ; not yet
                  select 'a;b' as text, cast(null as int) as nothing"""
    command = [sys.executable, "-m", "pentalog", "sql", "--server", server]
    done = subprocess.run(
        [*command, "--format", "json"], input=queries.encode(), capture_output=True, timeout=200,
        env={**os.environ, **java.environment()},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert [json.loads(line) for line in done.stdout.decode().splitlines()] == [
        {"offset": 0, "key": "0", "value": '{"id": 0, "amount": 0.0}'},
        {"offset": 1, "key": "1", "value": '{"id": 1, "amount": 0.5}'},
        {"offset": 2, "key": "ü", "value": "poison"},
        {"text": "a;b", "nothing": None},
    ]
    where = tmp_path / "found"
    many = f"select * from topic.`{topic}`; select * from topic.missing"
    done = subprocess.run(
        [*command, "--format", "parquet", "--output", str(where), many],
        capture_output=True,
        timeout=200,
        env={**os.environ, **java.environment()},
    )
    assert done.returncode == 1
    assert b"pentalog: there is no topic 'missing'" in done.stderr
    assert b"Traceback" not in done.stderr
    assert pq.read_table(where).num_rows == 3

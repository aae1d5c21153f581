"""Whole pipelines on real Spark: from a topic to tables, whatever the records are like."""

from __future__ import annotations

import dataclasses
import datetime
import io
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import fastavro
import polars
import pytest
from deltalake import DeltaTable
from lake import audit, declare, forget_last_commit, make_topic, orders, places, produce, run, table

import pentalog
from pentalog.cli.refusals import reason
from pentalog.clients.kafka import Cluster, committed
from pentalog.tables.checkpoint import INGEST, Checkpoint, gold_query
from pentalog.tables.pipeline import PipelineError
from pentalog.tables.runner import PipelineFailed, Runner
from pentalog.tables.sinks import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POISON = [
    b"{broken", b"\xff\xfe", b"", b'{"id":"seven","amount":1}', b'[{"id":1},{"id":2}]', b"42",
    b'{"id":1e30,"amount":1}', b"[" * 2000, None, b'{"id":1} trailing {"id":2}',
    b'{"id":"5","amount":1}', b'{"id":1.5,"amount":1}', b'{"id":6,"amount":true}',
]  # fmt: skip


DAY_MS = 86_400_000


def _date(ms: int) -> str:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).date().isoformat()


@pytest.fixture
def server(broker: pentalog.Broker) -> str:
    return broker.address("kafka")


@pytest.mark.parametrize("sink", ["delta", "parquet", "iceberg"])
def test_records_become_rows_once(
    spark: SparkSession, server: str, topic: str, tmp_path: Path, sink: str
) -> None:
    """Good and bad records, a second run, and a batch that runs again after its commit."""
    make_topic(server, topic)
    produce(server, topic, [*orders(0, 300), *POISON])
    declared = declare(server, topic, tmp_path / "lake", sink=sink, batch_rows_max=200)
    told = run(spark, declared)
    assert [one["lag"] for one in told][-1] == 0
    records = 300 + len(POISON)
    assert sum(one["rows"] for one in told) == records
    audit(declared, records)
    rows = table(declared, "silver").select(["id", "amount"]).sort_by("id").to_pylist()
    assert rows == [{"id": one, "amount": one / 4} for one in range(300)]
    dead = table(declared, "dead_letters").to_pylist()
    assert {one["value"] for one in dead} == set(POISON)
    reasons = {one["value"]: one["reason"] for one in dead}
    assert reasons[b"{broken"] == "the value is not JSON"
    assert reasons[b"\xff\xfe"] == "the value is not UTF-8"
    assert reasons[b'{"id":"seven","amount":1}'] == "id is no BIGINT: seven"
    assert reasons[b'{"id":"5","amount":1}'] == "id is no BIGINT: 5"
    assert reasons[b'{"id":1.5,"amount":1}'] == "id is no BIGINT: 1.5"
    assert reasons[b'{"id":6,"amount":true}'] == "amount is no DOUBLE: true"
    assert reasons[b'[{"id":1},{"id":2}]'] == "the value is no JSON object"
    assert reasons[b'{"id":1} trailing {"id":2}'] == "something follows the JSON object"
    assert reasons[None] == "the value is null"
    forget_last_commit(declared)
    before = {layer: len(open_table(declared.table(layer)).files()) for layer in declared.layers}
    produce(server, topic, orders(300, 50))
    run(spark, declared)
    audit(declared, records + 50)
    after = {layer: len(open_table(declared.table(layer)).files()) for layer in declared.layers}
    # The batch that ran again wrote no files: only the new one did.
    assert after["silver"] - before["silver"] <= 2
    with Cluster(server) as cluster:
        shown = committed(cluster, "pentalog.orders")
    assert sum(one.offset for at, one in shown.items() if at.topic == topic) == records + 50
    assert open_table(declared.table("silver")).read(spark).count() == 350


def test_a_new_checkpoint_goes_on_where_the_tables_end(
    spark: SparkSession, server: str, topic: str, tmp_path: Path
) -> None:
    make_topic(server, topic)
    produce(server, topic, orders(0, 100))
    first = declare(server, topic, tmp_path / "lake", checkpoint=str(tmp_path / "one"))
    run(spark, first)
    produce(server, topic, orders(100, 100))
    second = declare(server, topic, tmp_path / "lake", checkpoint=str(tmp_path / "two"))
    assert sum(one["rows"] for one in run(spark, second)) == 100
    audit(second, 200)
    # The older driver, had it not died, finds everything done and reads nothing.
    assert [one["rows"] for one in run(spark, first)] == [0]
    audit(second, 200)


def test_rules_drop_and_bury_and_stop(
    spark: SparkSession, server: str, topic: str, tmp_path: Path
) -> None:
    make_topic(server, topic, 1)
    produce(server, topic, orders(0, 20))
    rules = [
        {"name": "small", "expect": "amount < 4", "action": "drop"},
        {"name": "odd", "expect": "id % 5 <> 0"},
    ]
    declared = declare(server, topic, tmp_path / "lake", rules=rules)
    run(spark, declared)
    state = open_table(declared.table("silver")).state()
    assert sum(state.dropped.values()) == 4
    dead = table(declared, "dead_letters").to_pylist()
    assert sorted(one["offset"] for one in dead) == [0, 5, 10, 15]
    assert {one["reason"] for one in dead} == {"odd: not id % 5 <> 0"}
    assert len(places(declared, "silver")) == 12
    produce(server, topic, ['{"id": -1}'])
    windows = {"window": "1 minute", "aggregates": {"rows": "count(*)"}}
    strict = declare(
        server, topic, tmp_path / "lake", rules=[{"expect": "id >= 0", "action": "stop"}],
        gold={"counts": windows},
    )  # fmt: skip
    other = dataclasses.replace(declare(server, topic, tmp_path / "other"), name="other")
    runner = Runner(spark, [strict, other], once=True, report=lambda _: None, reason=reason)
    words = f"stops at {topic}/0 offset 20: rule 1: not id >= 0"
    with pytest.raises(PipelineFailed, match=words):
        runner.run()
    assert len(places(declared, "bronze")) == 20
    for query in (INGEST, gold_query("counts")):
        told = Checkpoint(strict.checkpoint, query).progress()
        assert told["failed"] == f"pipeline orders {words}"
    assert open_table(strict.table("gold/counts")).state().covered == {}
    assert len(places(other, "bronze")) == 21


def test_schemas_grow(spark: SparkSession, server: str, topic: str, tmp_path: Path) -> None:
    """New fields become columns; what cannot be what its column is becomes a dead letter."""
    make_topic(server, topic, 1)
    produce(server, topic, ['{"id": 1}', '{"id": 2, "who": {"name": "x"}}'])
    inferred = declare(server, topic, tmp_path / "a", decode="json")
    run(spark, inferred)
    produce(
        server, topic,
        ['{"id": "three"}', '{"id": 4, "who": {"name": "y", "age": 3}, "tags": [1.5]}'],
    )  # fmt: skip
    run(spark, inferred)
    rows = table(inferred, "silver").sort_by("_offset").to_pylist()
    assert [one["id"] for one in rows] == [1, 2, 4]
    assert [one["who"] for one in rows][1:] == [{"name": "x", "age": None}, {"name": "y", "age": 3}]
    assert rows[2]["tags"] == [1.5]
    (dead,) = table(inferred, "dead_letters").to_pylist()
    assert dead["reason"] == "id is no BIGINT: three"

    given = declare(server, topic, tmp_path / "b", decode={"format": "json", "schema": "id BIGINT"})
    run(spark, given)
    produce(server, topic, ['{"id": 5, "note": "n"}', '{"id": "six"}'])
    changed = declare(
        server, topic, tmp_path / "b",
        decode={"format": "json", "schema": "id STRING, note STRING"},
    )  # fmt: skip
    run(spark, changed)
    rows = table(changed, "silver").sort_by("_offset").to_pylist()
    assert [(one["id"], one["note"]) for one in rows] == [(1, None), (2, None), (4, None), (5, "n")]
    reasons = [
        one["reason"] for one in table(changed, "dead_letters").sort_by("offset").to_pylist()
    ]
    assert reasons[1] == "id is STRING and the table has BIGINT: the value does not fit"


def test_every_format(spark: SparkSession, server: str, topic: str, tmp_path: Path) -> None:
    schema = {
        "type": "record", "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }  # fmt: skip
    moment = datetime.datetime(2026, 11, 16, tzinfo=datetime.UTC)
    file = io.BytesIO()
    fastavro.schemaless_writer(file, schema, {"id": 7, "note": None, "at": moment})
    avro = file.getvalue()
    (tmp_path / "order.avsc").write_text(json.dumps(schema))
    cases: dict[str, tuple[list[bytes], dict[str, Any], list[dict[str, Any]], int]] = {
        "avro": (
            [avro, avro + b"x", b"\xff"],
            {"schema": str(tmp_path / "order.avsc")},
            [{"id": 7, "note": None, "at": moment}],
            2,
        ),
        "csv": (
            [b"1,a", b"x,b", b"2,c,d"],
            {"schema": "id BIGINT, note STRING"},
            [{"id": 1, "note": "a"}],
            2,
        ),
        "text": ([b"hello", b"\xff"], {}, [{"text": "hello"}], 1),
        "raw": ([b"\xff"], {}, [{"key": b"k0", "value": b"\xff"}], 0),
    }
    for form, (values, more, expected, dead) in cases.items():
        name = f"{topic}-{form}"
        make_topic(server, name, 1)
        produce(server, name, values)
        declared = declare(server, name, tmp_path / form, decode={"format": form, **more})
        run(spark, declared)
        rows = table(declared, "silver")
        ours = [one for one in rows.column_names if one.startswith("_")]
        assert rows.drop_columns(ours).to_pylist() == expected, form
        assert len(places(declared, "dead_letters")) == dead, form
        audit(declared, len(values))


def test_keys_columns_transforms_and_partitions(
    spark: SparkSession, server: str, topic: str, tmp_path: Path
) -> None:
    make_topic(server, topic, 1)
    today_ms = int(time.time() * 1000) // DAY_MS * DAY_MS
    produce(server, topic, orders(0, 10), timestamp=today_ms - 2 * DAY_MS)
    produce(server, topic, orders(5, 13), timestamp=today_ms - DAY_MS)
    code = tmp_path / "more.py"
    code.write_text(
        "from pyspark.sql import functions as f\n"
        "def silver(rows):\n"
        "    return rows.withColumn('double', f.col('total') * 2)\n"
    )
    declared = declare(
        server, topic, tmp_path / "lake", key=["number"], partition_by=["day"],
        columns={"number": "id", "total": "amount", "source": "_topic"}, transforms=str(code),
        batch_rows_max=7, rules=[{"expect": "number < 15", "action": "drop"}],
    )  # fmt: skip
    run(spark, declared)
    forget_last_commit(declared)
    run(spark, declared)
    rows = sorted(table(declared, "silver").to_pylist(), key=lambda one: one["number"])
    assert [one["number"] for one in rows] == list(range(15))
    assert [one["double"] for one in rows] == [one / 2 for one in range(15)]
    assert {one["source"] for one in rows} == {topic}
    dropped = open_table(declared.table("silver")).state().dropped
    assert sum(dropped.values()) == 3
    days = {one["number"]: one["_day"].isoformat() for one in rows}
    assert days[4] == _date(today_ms - 2 * DAY_MS)
    assert days[5] == days[14] == _date(today_ms - DAY_MS)
    (tmp_path / "bad.py").write_text("def silver(rows):\n    return rows.drop('_offset')\n")
    wrong = declare(server, topic, tmp_path / "b", transforms=str(tmp_path / "bad.py"))
    with pytest.raises(PipelineError, match="must keep _offset"):
        run(spark, wrong)


def test_dead_letters_also_go_to_their_topic(
    spark: SparkSession, server: str, topic: str, tmp_path: Path
) -> None:
    make_topic(server, topic, 1)
    make_topic(server, f"{topic}.dlq", 1)
    produce(server, topic, [*orders(0, 5), b"bad", b"worse"])
    declared = declare(server, topic, tmp_path / "lake", dead_letter_topic=True)
    run(spark, declared)
    forget_last_commit(declared)
    run(spark, declared)
    rows = spark.read.format("pentalog").options(servers=server, topics=f"{topic}.dlq").load()
    found = rows.orderBy("offset").collect()
    assert [bytes(one["value"]) for one in found] == [b"bad", b"worse"]
    headers = {one["key"]: bytes(one["value"]) for one in found[0]["headers"]}
    assert headers["pentalog.reason"] == b"the value is not JSON"
    assert headers["pentalog.offset"] == b"5"


def test_other_readers_see_the_same_rows(
    spark: SparkSession, server: str, topic: str, tmp_path: Path
) -> None:
    make_topic(server, topic)
    produce(server, topic, orders(0, 500))
    declared = declare(server, topic, tmp_path / "lake", partition_by=["hour"])
    run(spark, declared)
    uri = declared.table("silver").uri
    expected = (500, sum(range(500)), sum(one / 4 for one in range(500)))
    files = DeltaTable(uri).file_uris()
    query = "select count(*), sum(id), sum(amount) from read_parquet($files)"
    assert duckdb.execute(query, {"files": files}).fetchone() == expected
    frame = polars.read_delta(uri)
    assert (frame.height, frame["id"].sum(), frame["amount"].sum()) == expected
    arrow = DeltaTable(uri).to_pyarrow_table().to_pandas()
    assert (len(arrow), arrow["id"].sum(), arrow["amount"].sum()) == expected
    read = open_table(declared.table("silver")).read(spark)
    found = read.selectExpr("count(*)", "sum(id)", "sum(amount)").first()
    assert found is not None
    assert tuple(found) == expected
    assert len(read.select("_hour").distinct().collect()) >= 1

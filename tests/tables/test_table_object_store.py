"""A pipeline into an object store: an S3 of its own on loopback, conditional writes included."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars
import pytest
from lake import audit, declare, forget_last_commit, make_topic, orders, produce, run, table

import pentalog
from pentalog.cli.output import Refused
from pentalog.cli.refusals import refusing
from pentalog.model.types import Partition
from pentalog.tables import maintenance, repair, status, verification
from pentalog.tables.catalog import Catalog, Places
from pentalog.tables.files import FileSet
from pentalog.tables.pipeline import SINKS, PipelineError, TableAt
from pentalog.tables.sinks import Busy, Range, SinkRefused, Step, open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_of_two_commits_one_is_refused(options: dict[str, str], topic: str) -> None:
    """Exactly once rests on this: the store must refuse to write a version twice."""
    import pyarrow as pa

    at = TableAt(f"s3://lake/{topic}/bronze", "delta", "p", "bronze", storage_options=options)
    one = open_table(at)
    one.prepare(pa.schema([("offset", pa.int64())]))
    other = open_table(at)
    place = Partition("t", 0)
    one.announce("q", [place])
    step = Step("q", 0, {place: Range(0, 2)}, {place: Range(0, 2)})
    files = []
    for sink in (one, other):
        written = FileSet(sink.layout(1 << 20))
        written.add(pa.table({"offset": pa.array([0, 1], pa.int64())}))
        files.append(written.close())
        sink.state()
    one.append(files[0], step)
    with pytest.raises(Busy):
        other.append(files[1], step)
    assert open_table(at).arrow().num_rows == 2


def test_a_pipeline_into_an_object_store(
    spark: SparkSession,
    broker: pentalog.Broker,
    topic: str,
    tmp_path: Path,
    options: dict[str, str],
) -> None:
    server = broker.address("kafka")
    make_topic(server, topic)
    produce(server, topic, [*orders(0, 100), b"bad"])
    given = {
        "storage_options": options, "partition_by": ["day"], "batch_rows_max": 60,
        "checkpoint": str(tmp_path / "progress"), "starting": {topic: {"0": 9}},
    }  # fmt: skip
    declared = declare(server, topic, f"s3://lake/{topic}", **given)
    run(spark, declared)
    forget_last_commit(declared)
    run(spark, declared)
    assert repair.backfill(spark, declared, "earliest") == {Partition(topic, 0): Range(0, 9)}
    audit(declared, 101)
    rows = open_table(declared.table("silver")).read(spark)
    assert rows.selectExpr("sum(id)", "count(distinct _day)").first() == (4950, 1)
    frame = polars.read_delta(declared.table("silver").uri, storage_options=options)
    assert frame["id"].sum() == 4950
    assert maintenance.compact(declared)["silver"]["files_added"] == 1
    maintenance.vacuum(declared, retention_ms=0)
    assert table(declared, "silver").num_rows == 100

    texts = declare(
        server, topic, f"s3://lake/{topic}", **given,
        decode={"format": "json", "schema": "id BIGINT, amount DOUBLE", "infer": True},
        columns={"id": "id", "amount": "cast(amount as string)"},
    )  # fmt: skip
    assert repair.replay_dead_letters(spark, texts) == {"moved": 0, "dropped": 0, "left": 1}
    assert repair.rebuild(spark, texts) == {"silver": 100, "dead_letters": 1}
    report = verification.verify(spark, texts)
    assert report.ok, report.problems
    rows = Catalog(spark, Places(pipelines={"orders": texts})).sql(
        "select max(amount), (select count(*) from table.orders_dead_letters) from table.orders"
    )
    assert rows.first() == ("9.75", 1)
    told = status.describe(texts)
    assert told["lag"]["records"] == 0
    assert sum(end - start for start, end in told["tables"]["silver"]["covered"].values()) == 101
    assert set(maintenance.drop(texts)) == {"bronze", "silver", "dead_letters"}
    assert not open_table(texts.table("silver")).exists()


def test_what_needs_a_file_system_says_so(options: dict[str, str]) -> None:
    advice = {
        "parquet": "set sink = 'delta' or 'iceberg' for an object store",
        "iceberg": "give sink = 'iceberg' and catalog = .* or set sink = 'delta'",
        "iceberg-jar": "give sink = 'iceberg' and catalog = ",
        "delta-jar": "set sink = 'delta' for an object store",
    }
    for sink in (one for one in SINKS if one != "delta"):
        at = TableAt("s3://lake/x/bronze", sink, "p", "bronze", storage_options=options)
        with pytest.raises(SinkRefused, match=advice[sink]):
            open_table(at)
    with pytest.raises(PipelineError, match="into: is empty"):
        declare("h:1", "t", "")


def test_a_store_that_cannot_be_used_is_one_line() -> None:
    told = (
        "Operation not supported\n  \x1b[31m↳\x1b[0m no credentials\n   \x1b[31m↳\x1b[0m denied.\n"
    )
    with pytest.raises(Refused) as caught, refusing():
        raise OSError(told)
    expected = "Operation not supported: no credentials: denied; check into and storage_options"
    assert str(caught.value) == f"{expected} of the pipeline"

"""The whole life of a table whose rows replace each other, in partitions, of each kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars
import pyarrow as pa
import pytest
from lake import declare, forget_last_commit, make_topic, places, produce, run, table

import pentalog
from pentalog.tables import maintenance, repair, verification
from pentalog.tables.catalog import Catalog, Places
from pentalog.tables.pipeline import Pipeline
from pentalog.tables.sinks import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REGIONS = ("north", "a b/ü%", None)
STRICT = {"format": "json", "schema": "id BIGINT, amount DOUBLE, region STRING"}
LENIENT = {"format": "json", "schema": "id BIGINT, amount STRING, region STRING"}


@pytest.fixture(autouse=True)
def _slow_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """polars warns of a faster planner that could be installed."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


@pytest.fixture
def server(broker: pentalog.Broker) -> str:
    return broker.address("kafka")


def prices(first: int, count: int) -> list[str]:
    """Orders of eight numbers; each new one of a number takes the place of the one before."""
    return [
        json.dumps({"id": one % 8, "amount": one / 4, "region": REGIONS[one % 8 % 3]})
        for one in range(first, first + count)
    ]


def silver(declared: Pipeline) -> dict[int, tuple[int, float]]:
    rows = table(declared, "silver").to_pylist()
    found = {one["id"]: (one["_offset"], one["amount"]) for one in rows}
    assert all(one["region"] == REGIONS[one["id"] % 3] for one in rows)
    assert len(found) == len(rows), "a key is there twice"
    return found


def latest(*offsets: int) -> dict[int, tuple[int, float]]:
    return {one % 8: (one, one / 4) for one in offsets}


def same_for_others(declared: Pipeline, expected: pa.Table) -> None:
    """Readers that know nothing of us see the same rows."""
    at = declared.table("silver")
    files = open_table(at).files()
    query = "select id, amount, _offset from read_parquet($files, union_by_name = true) order by 1"
    wanted = [
        (one["id"], one["amount"], one["_offset"]) for one in expected.sort_by("id").to_pylist()
    ]
    assert duckdb.execute(query, {"files": files}).fetchall() == wanted
    if declared.sink == "parquet":
        return
    if declared.sink == "delta":
        rows = polars.scan_delta(at.uri).select("id", "amount", "_offset").sort("id").collect()
        assert rows.rows() == wanted
        return
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("pentalog", uri=f"sqlite:///{declared.into}/iceberg.db")
    loaded = catalog.load_table("pentalog.silver")
    found = loaded.scan().to_arrow().select(["id", "amount", "_offset"]).sort_by("id")
    assert [tuple(one.values()) for one in found.to_pylist()] == wanted
    frame = polars.scan_iceberg(loaded).select("id", "amount", "_offset").sort("id").collect()
    assert frame.rows() == wanted


@pytest.mark.parametrize("sink", ["delta", "parquet", "iceberg"])
def test_rows_that_replace_each_other(
    spark: SparkSession, server: str, topic: str, tmp_path: Path, sink: str
) -> None:
    make_topic(server, topic, 1)
    dead = '{"id": 3, "amount": "6.5", "region": "north"}'
    produce(server, topic, [*prices(0, 40), dead, *prices(41, 4)])
    given = {
        "sink": sink, "key": ["id"], "batch_rows_max": 20, "starting": {topic: {"0": 20}},
        "partition_by": ["region"],
    }  # fmt: skip
    declared = declare(server, topic, tmp_path / "lake", **given, decode=STRICT)
    run(spark, declared)
    assert silver(declared) == latest(*range(32, 40), *range(41, 45))
    forget_last_commit(declared)
    run(spark, declared)
    assert silver(declared) == latest(*range(32, 40), *range(41, 45))

    repair.backfill(spark, declared, "earliest")
    assert silver(declared) == latest(*range(32, 40), *range(41, 45))
    assert places(declared, "bronze") == [(0, offset) for offset in range(45)]

    lenient = declare(server, topic, tmp_path / "lake", **given, decode=LENIENT)
    counts = repair.replay_dead_letters(spark, lenient)
    # Its row, of offset 40, is older than the one its key has by now.
    assert counts == {"moved": 1, "dropped": 0, "left": 0}
    assert silver(declared)[3] == (43, 43 / 4)

    done = maintenance.compact(declared)
    assert done["bronze"]["files_added"] == 1
    for layer, files in (("bronze", 1), ("silver", len(REGIONS))):
        assert len(open_table(declared.table(layer)).files()) == files
    maintenance.vacuum(declared, retention_ms=0)
    left = {str(one) for one in Path(declared.table("bronze").uri).rglob("*.parquet")}
    assert left == set(open_table(declared.table("bronze")).files())

    produce(server, topic, prices(45, 3))
    run(spark, lenient)
    expected = latest(32, *range(41, 48))
    assert silver(declared) == expected
    same_for_others(declared, table(declared, "silver"))
    query = "select count(*), sum(amount), count_if(region is null) from table.orders"
    row = Catalog(spark, Places(pipelines={"orders": lenient})).sql(query).first()
    amounts = [one for _, one in expected.values()]
    assert row is not None
    assert tuple(row) == (8, sum(amounts), 2)
    report = verification.verify(spark, lenient)
    assert report.ok, report.problems
    assert repair.rebuild(spark, lenient) == {"silver": 8, "dead_letters": 0}
    assert {one["id"]: one["amount"] for one in table(lenient, "silver").to_pylist()} == {
        key: str(amount) for key, (_, amount) in expected.items()
    }
    assert set(maintenance.drop(lenient)) == {"bronze", "silver", "dead_letters"}
    assert not open_table(lenient.table("silver")).exists()

"""Every command on every kind of table, in processes of their own, read by others afterwards.

One file has two pipelines of one topic: `kept` keeps every row and has a gold table, `newest` the
newest row of every number; both are in partitions, and some records are no rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import jar_files
import polars
import pyarrow as pa
import pytest
from drivers import Java, command, finish
from lake import make_topic, produce

import pentalog
from pentalog.tables import jars
from pentalog.tables.pipeline import LAYERS, Pipeline, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TORTURE = "PENTALOG_TORTURE" in os.environ
BY_JAR = (jars.DELTA.name, jars.ICEBERG.name)
KINDS = ("delta", "parquet", "iceberg", *BY_JAR)
REGIONS = ("north", "a b/%", None)
NUMBERS = 8
FIRST = 20
"""Where tables begin, until earlier records are asked for."""
PIPELINE = """
[pipeline.{name}]
from = "{server}"
topics = ["{topic}"]
into = "{into}/{name}"
sink = "{sink}"
batch_rows_max = 60
starting = {{ "{topic}" = {{ "0" = 20, "1" = 20 }} }}
decode = {{ format = "json", schema = "id BIGINT, region STRING, amount {amount}" }}
"""
KEPT = """partition_by = ["day", "region"]
{settings}
[pipeline.kept.gold.per_second]
window = "1 second"
watermark = "1 second"
aggregates = {{ n = "count(*)" }}
"""
NEWEST = """partition_by = ["region"]
key = ["id"]
{settings}
"""
SPARK = 'spark = { "spark.databricks.delta.snapshotPartitions" = "2" }'

Row = tuple[Any, ...]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _slow_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """polars warns of a faster planner that could be installed."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


def order(one: int) -> dict[str, Any]:
    """An order of one of a few numbers; every tenth has an amount that is a text."""
    amount: Any = str(one / 4) if one % 10 == 9 else one / 4
    return {"id": one % NUMBERS, "region": REGIONS[one % NUMBERS % 3], "amount": amount}


class Shop:
    """The topic and what its records are to become."""

    def __init__(self, server: str, topic: str, folder: Path, sink: str, java: Java) -> None:
        self.server, self.topic, self.folder = server, topic, folder
        self.sink, self.java = sink, java
        self.file = folder / "pipeline.toml"
        self.records: dict[tuple[int, int], dict[str, Any]] = {}
        make_topic(server, topic, 2)
        self.declare()

    def declare(self, amount: str = "DOUBLE") -> None:
        settings = SPARK if self.sink in BY_JAR else ""
        given = {
            "server": self.server, "topic": self.topic, "into": self.folder / "lake",
            "sink": self.sink, "amount": amount,
        }  # fmt: skip
        text = "".join(
            PIPELINE.format(name=name, **given) + rest.format(settings=settings)
            for name, rest in (("kept", KEPT), ("newest", NEWEST))
        )
        self.file.write_text(text)

    def produce(self, count: int) -> None:
        first = len(self.records)
        for partition in range(2):
            mine = [one for one in range(first, first + count) if one % 2 == partition]
            known = sum(1 for at, _ in self.records if at == partition)
            produce(
                self.server,
                self.topic,
                [json.dumps(order(one)) for one in mine],
                partition=partition,
            )
            for place, one in enumerate(mine):
                self.records[partition, known + place] = order(one)

    def table(self, *words: str, code: int = 0) -> str:
        return self._finished(command(*words, **self.java.environment()), code)

    def told(self, verb: str, *words: str) -> list[Any]:
        out = self.table(verb, str(self.file), *words, "--json")
        return [json.loads(line) for line in out.splitlines()]

    def other(self, *words: str, code: int = 0) -> str:
        process = subprocess.Popen(
            [sys.executable, "-m", "pentalog", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, **self.java.environment()},
        )  # fmt: skip
        return self._finished(process, code)

    def _finished(self, process: subprocess.Popen[str], code: int) -> str:
        found, out, err = finish(process)
        assert found == code, (process.args, out[-2000:], err[-3000:])
        return out

    def rows(self, name: str, layer: str) -> pa.Table:
        """A table by a reader that is not ours."""
        return read(self.sink, load(self.file)[name], layer)


def read(sink: str, declared: Pipeline, layer: str) -> pa.Table:
    uri = declared.table(layer).uri
    if sink in ("delta", "delta-jar"):
        return polars.read_delta(uri).to_arrow()
    if sink in ("iceberg", "iceberg-jar"):
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("pentalog", uri=f"sqlite:///{declared.into}/iceberg.db")
        return polars.scan_iceberg(catalog.load_table(f"pentalog.{layer}")).collect().to_arrow()
    manifest = sorted(Path(uri, "_manifest").glob("*.json"))
    files: dict[str, None] = {}
    for one in manifest:
        if one.name.endswith(".whole.json"):
            continue
        found = json.loads(one.read_text())
        for gone in found.get("remove", ()):
            del files[gone]
        files.update(dict.fromkeys(f"{each['path']}" for each in found.get("add", ())))
    if not files:
        return pa.table({})
    paths = [f"{uri}/{path}" for path in files]
    query = "select * from read_parquet($paths, union_by_name = true, hive_partitioning = false)"
    return duckdb.sql(query, params={"paths": paths}).to_arrow_table()


def held(shop: Shop, first: int, *, moved: bool = False, text: bool = False) -> None:
    """The tables have exactly what the topic has from offset `first` on."""
    everything = {at: one for at, one in shop.records.items() if at[1] >= first}
    dead = {at for at, one in everything.items() if isinstance(one["amount"], str) and not moved}
    good = {
        at: (one["id"], one["region"], str(one["amount"]) if text else float(one["amount"]))
        for at, one in everything.items() if at not in dead
    }  # fmt: skip
    for name in ("kept", "newest"):
        assert placed(shop, name, "bronze") == sorted(everything)
        assert placed(shop, name, "dead_letters") == sorted(dead)
    expected = {}
    for at in sorted(good, key=lambda at: (at[1], at[0])):
        expected[good[at][0]] = at
    assert silver(shop, "kept") == good
    assert silver(shop, "newest") == {at: good[at] for at in expected.values()}


def placed(shop: Shop, name: str, layer: str) -> list[tuple[int, int]]:
    found = shop.rows(name, layer)
    if not found.num_rows:
        return []
    return sorted((one["partition"], one["offset"]) for one in found.to_pylist())


def silver(shop: Shop, name: str) -> dict[tuple[int, int], Row]:
    rows = shop.rows(name, "silver").to_pylist()
    found = {
        (one["_partition"], one["_offset"]): (one["id"], one["region"], one["amount"])
        for one in rows
    }
    assert len(found) == len(rows)
    return found


@pytest.fixture
def shop(
    broker: pentalog.Broker, spark: SparkSession, topic: str, tmp_path: Path, kind: str
) -> Iterator[Shop]:
    java = Java(jar_files.jars(kind) if kind in BY_JAR else "")
    yield Shop(broker.address("kafka"), topic, tmp_path, kind, java)
    java.kill()


@pytest.mark.skipif(not TORTURE, reason="part of make torture")
@pytest.mark.timeout(1800)
def test_a_whole_life(shop: Shop) -> None:
    file = str(shop.file)
    assert [one["state"] for one in shop.told("list")[0]] == ["new", "new"]
    shop.produce(160)
    shop.table("run", file, "--once")
    held(shop, FIRST)
    shop.produce(40)
    shop.table("run", file, "--once")
    held(shop, FIRST)
    (found,) = shop.told("status")
    assert set(found[0]["tables"]) == {*LAYERS, "gold/per_second"}
    for one in found:
        assert one["state"] == "stopped"
        assert one["lag"]["records"] == 0
        assert {layer: sum(end - start for start, end in at["covered"].values())
                for layer, at in one["tables"].items() if layer in LAYERS
                } == dict.fromkeys(LAYERS, 160)  # fmt: skip
    for name in ("kept", "newest"):
        (done,) = shop.told("backfill", name, "--from", "earliest")
        assert done["added"] == {f"{shop.topic}/{at}": [0, FIRST] for at in range(2)}
    held(shop, 0)
    proved(shop)
    queried(shop)
    upkept(shop)
    held(shop, 0)
    shop.declare("STRING")
    for name in ("kept", "newest"):
        (done,) = shop.told("replay-dlq", name)
        assert done["left"] == 0
    held(shop, 0, moved=True)
    for name in ("kept", "newest"):
        (done,) = shop.told("rebuild", name)
        assert (done["silver"], done["dead_letters"]) == (200 if name == "kept" else NUMBERS, 0)
    held(shop, 0, moved=True, text=True)
    proved(shop)
    for name in ("kept", "newest"):
        (done,) = shop.told("drop", name, "--yes")
        assert done["dropped"] == list(load(shop.file)[name].layers)
    assert [one["state"] for one in shop.told("list")[0]] == ["new", "new"]
    assert not list((shop.folder / "lake").rglob("*.parquet"))
    shop.declare()
    shop.table("run", file, "--once")
    held(shop, FIRST)


def proved(shop: Shop) -> None:
    out = shop.other("verify", str(shop.file), "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert [one["ok"] for one in found] == [True, True]


def queried(shop: Shop) -> None:
    names = ("kept", "kept_bronze", "kept_dead_letters", "newest")
    counts = ", ".join(f"(select count(*) from table.{name}) as {name}" for name in names)
    query = f"""select {counts}, (select count(*) from topic.`{shop.topic}`) as live,
        (select count(*) from table.kept_per_second) > 0 as windows,
        (select count(*) from table.kept where region = '{REGIONS[1]}') as odd,
        (select count(*) from table.newest where region is null) as none"""
    out = shop.other("sql", "--config", str(shop.file), "--json", query)
    records = list(shop.records.values())
    good = [one for one in records if not isinstance(one["amount"], str)]
    assert json.loads(out) == {
        "kept": len(good), "kept_bronze": len(records),
        "kept_dead_letters": len(records) - len(good), "newest": NUMBERS, "live": len(records),
        "windows": True, "odd": sum(one["region"] == REGIONS[1] for one in good), "none": 2,
    }  # fmt: skip


def upkept(shop: Shop) -> None:
    """Few files are left, and no other lies about."""
    done = {(one["pipeline"], one["table"]): one for one in shop.told("compact")}
    assert done["kept", "bronze"]["files_removed"] > 1
    assert done["kept", "silver"]["files_added"] == len(REGIONS)
    words = ("vacuum", "--older-than", "0 seconds")
    would, removed = shop.told(*words, "--dry-run"), shop.told(*words)
    if not shop.sink.startswith("iceberg"):
        # There snapshots are expired first, which makes more of them needless.
        assert [len(one["files"]) for one in would] == [len(one["files"]) for one in removed]
    left = [len(list((shop.folder / "lake" / name / layer).rglob("*.parquet")))
            for name in ("kept", "newest") for layer in LAYERS]  # fmt: skip
    assert left == [1, len(REGIONS), 1] * 2

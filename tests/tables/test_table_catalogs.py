"""Iceberg tables in catalogs that others use too, with their files on an object store."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import rest_catalog
from lake import audit, declare, forget_last_commit, make_topic, orders, produce, run, table
from pyiceberg.catalog import load_catalog

import pentalog
from pentalog.model.types import Partition
from pentalog.tables import commit, maintenance, repair, verification
from pentalog.tables.catalog import Catalog, Places
from pentalog.tables.files import File, FileSet
from pentalog.tables.pipeline import TableAt
from pentalog.tables.runner import Runner
from pentalog.tables.sinks import Busy, Range, Sink, SinkRefused, Step, open_table, probe
from pentalog.testing.ports import reserve_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TORTURE = "PENTALOG_TORTURE" in os.environ
AT = Partition("orders", 0)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("region", pa.string()),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
    ]
)

TAKING = """
import json, sys
import test_table_catalogs as tables
at, batch, start, end = json.loads(sys.argv[1])
tables.take(tables.open_table(tables.TableAt(**at)), batch, start, end)
"""
"""One batch of one driver."""


@pytest.fixture(scope="module")
def rest(options: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_catalog.started(tmp_path_factory.mktemp("rest"), options) as address:
        yield address


@pytest.fixture(params=["sql", "glue", "rest"] if TORTURE else ["glue", "rest"])
def at(
    request: pytest.FixtureRequest, options: dict[str, str], topic: str, tmp_path: Path
) -> TableAt:
    """A table of a catalog of this kind; the one by REST lends the keys of the store."""
    endpoint = options["AWS_ENDPOINT_URL"]
    catalog = {"type": request.param, "namespace": topic.replace("-", "_")}
    if request.param == "sql":
        catalog |= {"uri": f"sqlite:///{tmp_path}/mine.db", "warehouse": "s3://lake/warehouse"}
    elif request.param == "glue":
        catalog |= {
            "glue.endpoint": endpoint, "glue.region": "us-east-1", "glue.access-key-id": "test",
            "glue.secret-access-key": "test",
        }  # fmt: skip
    else:
        catalog |= {"uri": request.getfixturevalue("rest"), "s3.endpoint": endpoint}
        options = {"AWS_REGION": "us-east-1"}
    return TableAt(
        f"s3://lake/{topic}/silver", "iceberg", "p", "silver", ("region",),
        storage_options=options, catalog=catalog,
    )  # fmt: skip


def written(sink: Sink, start: int, end: int) -> list[File]:
    files = FileSet(sink.layout(1 << 20))
    rows = [
        {"id": one, "region": ["a b;/ü%", None][one % 2], "_topic": "orders", "_partition": 0,
         "_offset": one}
        for one in range(start, end)
    ]  # fmt: skip
    files.add(pa.Table.from_pylist(rows, schema=SCHEMA))
    return files.close()


def take(sink: Sink, batch: int, start: int, end: int) -> bool:
    ranges = {AT: Range(start, end)}
    return commit.settle(sink, "q", batch, ranges, ranges, written(sink, start, end))


def offsets(at: TableAt) -> list[int]:
    return sorted(open_table(at).arrow().column("_offset").to_pylist())


def theirs(at: TableAt) -> Any:
    """The catalog as somebody else opens it, who has all keys."""
    given = {
        "s3.endpoint": "AWS_ENDPOINT_URL", "s3.access-key-id": "AWS_ACCESS_KEY_ID",
        "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY", "s3.region": "AWS_REGION",
    }  # fmt: skip
    access = {
        name: at.storage_options[key] for name, key in given.items() if key in at.storage_options
    }
    named = {key: value for key, value in at.catalog.items() if key != "namespace"}
    return load_catalog("default", **{**access, **named})


def test_a_table_in_a_catalog(at: TableAt) -> None:
    space = at.catalog["namespace"]
    probe(at)
    assert theirs(at).list_tables(space) == []
    sink = open_table(at)
    assert not sink.exists()
    sink.prepare(SCHEMA)
    assert take(sink, 0, 0, 4)
    assert not take(sink, 0, 0, 4)

    files, drivers = [], [open_table(at), open_table(at)]
    for driver in drivers:
        files.append(written(driver, 4, 8))
        driver.state()
    step = Step("q", 1, {AT: Range(4, 8)}, {AT: Range(0, 8)})
    drivers[0].append(files[0], step)
    with pytest.raises(Busy):
        drivers[1].append(files[1], step)
    assert offsets(at) == list(range(8))

    loaded = theirs(at).load_table((space, "silver"))
    assert sorted(loaded.scan().to_arrow()["id"].to_pylist()) == list(range(8))
    assert [one.name for one in loaded.spec().fields] == ["region"]
    # The library's retry would let a batch in twice; whoever allows it, it is off again.
    with loaded.transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "4"})
    assert take(sink, 2, 8, 10)
    assert loaded.refresh().properties["commit.retry.num-retries"] == "0"

    assert sink.compact(1 << 20) == {"files_removed": 6, "files_added": 2}
    assert {one.rpartition("/")[2] for one in sink.vacuum(0, dry_run=True)} >= {
        one.path.rpartition("/")[2] for one in files[1]
    }
    sink.vacuum(0, dry_run=False)
    assert sink.vacuum(0, dry_run=True) == []
    assert offsets(at) == list(range(10))
    sink.state()
    sink.cut(Step("retention", -1, {}, {AT: Range(7, 10)}))
    assert offsets(at) == [7, 8, 9]

    elsewhere = open_table(dataclasses.replace(at, uri=at.uri.replace("lake/", "lake/other/")))
    for touch in (elsewhere.exists, elsewhere.drop, lambda: elsewhere.prepare(SCHEMA)):
        with pytest.raises(SinkRefused, match=r"has a table .*silver at s3://lake/tables-.*name"):
            touch()
    sink.drop()
    assert not open_table(at).exists()
    assert theirs(at).list_tables(space) == []


@pytest.mark.crash
def test_killed_at_exact_lines(options: dict[str, str], topic: str, tmp_path: Path) -> None:
    """After the files and before the commit, and after the commit: then another driver goes on."""
    at = TableAt(
        f"s3://lake/{topic}/silver", "iceberg", "p", "silver", ("region",),
        storage_options=options, catalog={"uri": f"sqlite:///{tmp_path}/mine.db"},
    )  # fmt: skip
    sink = open_table(at)
    sink.prepare(SCHEMA)
    assert take(sink, 0, 0, 4)
    for batch, point in ((1, "before-commit"), (2, "after-commit")):
        start, end = batch * 4, batch * 4 + 4
        given = json.dumps([dataclasses.asdict(at), batch, start, end])
        killed = subprocess.run(
            [sys.executable, "-c", TAKING, given], cwd=Path(__file__).parent, check=False,
            env={**os.environ, "FAILPOINT_STEP": f"{point}:silver"}, timeout=200,
        )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL
        there = point == "after-commit"
        assert offsets(at) == list(range(end if there else start))
        assert take(open_table(at), batch, start, end) is not there
        assert offsets(at) == list(range(end))
    assert [one.batch for one in open_table(at).ledger()] == [0, 1, 2]
    left = sink.vacuum(0, dry_run=True)
    assert len([one for one in left if one.endswith(".parquet")]) == 2


def test_a_pipeline_in_a_catalog(
    spark: SparkSession,
    broker: pentalog.Broker,
    topic: str,
    tmp_path: Path,
    options: dict[str, str],
) -> None:
    """All that can be done to its tables."""
    server = broker.address("kafka")
    make_topic(server, topic, 1)
    produce(server, topic, [*orders(0, 40), '{"id": 3, "amount": "6.5"}'])
    given = {
        "sink": "iceberg", "storage_options": options, "checkpoint": str(tmp_path / "progress"),
        "catalog": {"type": "sql", "uri": f"sqlite:///{tmp_path}/mine.db"}, "key": ["id"],
        "batch_rows_max": 20, "starting": {topic: {"0": 10}}, "partition_by": ["day"],
    }  # fmt: skip
    declared = declare(server, topic, f"s3://lake/{topic}", **given)
    run(spark, declared)
    forget_last_commit(declared)
    run(spark, declared)
    repair.backfill(spark, declared, "earliest")
    audit(declared, 41)
    theirs_ = theirs(declared.table("silver"))
    assert theirs_.load_table("orders.silver").scan().to_arrow()["id"].to_pylist() != []
    assert {name for _, name in theirs_.list_tables("orders")} == {
        "bronze", "silver", "dead_letters",
    }  # fmt: skip

    lenient = declare(
        server, topic, f"s3://lake/{topic}", **given,
        decode={"format": "json", "schema": "id BIGINT, amount STRING"},
    )  # fmt: skip
    counts = repair.replay_dead_letters(spark, lenient)
    assert counts == {"moved": 1, "dropped": 0, "left": 0}
    rows = {one["id"]: one["amount"] for one in table(declared, "silver").to_pylist()}
    assert (len(rows), rows[3]) == (40, 6.5)
    assert maintenance.compact(declared)["bronze"]["files_added"] == 1
    maintenance.vacuum(declared, retention_ms=0)
    report = verification.verify(spark, lenient)
    assert report.ok, report.problems
    found = Catalog(spark, Places(pipelines={"orders": lenient})).sql(
        "select count(*), sum(id) from table.orders"
    )
    assert found.first() == (40, 780)
    assert repair.rebuild(spark, lenient) == {"silver": 40, "dead_letters": 0}
    assert set(maintenance.drop(lenient)) == {"bronze", "silver", "dead_letters"}
    assert theirs_.list_tables("orders") == []


@pytest.mark.skipif(not TORTURE, reason="part of make torture")
@pytest.mark.timeout(900)
def test_a_catalog_that_is_away_for_a_while(
    spark: SparkSession,
    broker: pentalog.Broker,
    topic: str,
    tmp_path: Path,
    options: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A long run waits for it; what came meanwhile is taken once."""
    server = broker.address("kafka")
    make_topic(server, topic)
    produce(server, topic, orders(0, 50))
    port = reserve_port()
    catalog = {"type": "rest", "uri": f"http://127.0.0.1:{port}", "namespace": f"away_{port}"}
    declared = declare(
        server, topic, f"s3://lake/{topic}", sink="iceberg", storage_options=options,
        catalog=catalog, checkpoint=str(tmp_path / "progress"), trigger="1 second",
    )  # fmt: skip
    told: list[Any] = []
    runner = Runner(spark, [declared], once=False, report=told.append)
    thread = threading.Thread(target=runner.run)
    with rest_catalog.started(tmp_path, options, port):
        thread.start()
        wait_until(lambda: bool(told))
    produce(server, topic, orders(50, 50))
    wait_until(lambda: caplog.text.count("starts again") > 1)
    with rest_catalog.started(tmp_path, options, port):
        wait_until(lambda: sum(one["rows"] for one in told) >= 100)
        runner.stop()
        thread.join()
        audit(declared, 100)


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 600
    while not true():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.1)

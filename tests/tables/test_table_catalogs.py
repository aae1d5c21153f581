"""Iceberg tables in catalogs that others use too, with their files on an object store."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import rest_catalog
from pyiceberg.catalog import load_catalog

from pentalog.model.types import Partition
from pentalog.tables import commit
from pentalog.tables.files import File, FileSet
from pentalog.tables.pipeline import TableAt
from pentalog.tables.sinks import Busy, Range, Sink, SinkRefused, Step, open_table, probe

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


@pytest.fixture(scope="module")
def rest(options: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_catalog.started(tmp_path_factory.mktemp("rest"), options) as address:
        yield address


@pytest.fixture(params=["sql", "glue", "rest"])
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

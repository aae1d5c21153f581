"""Catalogs of the user's: names, what is refused, and what is never told."""

from __future__ import annotations

import dataclasses
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pentalog.tables import pipeline
from pentalog.tables.pipeline import PipelineError, TableAt
from pentalog.tables.sinks import CatalogFailed, SinkRefused, iceberg_catalog, open_table, probe

SECRET = "xyzzy-plugh"


def declared(text: str) -> pipeline.Pipeline:
    given = f"[pipeline.My-Orders]\ndata = 'd'\ntopics = ['t']\ninto = 's3://lake/x'\n{text}"
    return pipeline.parse(tomllib.loads(given))["My-Orders"]


def at(**catalog: str) -> TableAt:
    return TableAt("s3://lake/orders/bronze", "iceberg", "orders", "bronze", catalog=catalog)


def test_names_that_every_catalog_takes() -> None:
    one = declared("sink = 'iceberg'\ncatalog = { type = 'rest', uri = 'http://h' }")
    names = {
        layer: iceberg_catalog.identifier(one.table(layer)) for layer in ("bronze", "gold/Per")
    }
    assert names == {"bronze": ("my_orders", "bronze"), "gold/Per": ("my_orders", "gold_per")}
    given = declared("sink = 'iceberg'\ncatalog = { uri = 'http://h', namespace = 'Shop.eu' }")
    assert iceberg_catalog.identifier(given.table("silver")) == ("Shop", "eu", "silver")
    trial = dataclasses.replace(given.table("silver"), uri="s3://lake/x/.probe-1a")
    assert iceberg_catalog.identifier(trial) == ("Shop", "eu", "_probe_1a")


def test_properties_with_and_without_quotes() -> None:
    """A name with a dot and no quotes is a table in a table to TOML, and to some of the library."""
    one = declared(
        "sink = 'iceberg'\n[pipeline.My-Orders.catalog]\nuri = 'http://h'\n"
        "s3.endpoint = 'http://s'\n's3.region' = 'r'\nrest.sigv4-enabled = true\n"
        "auth = { type = 'basic', basic = { username = 'u', password = 'p' } }\n"
    )
    assert one.catalog["s3.endpoint"] == "http://s"
    assert one.catalog["rest.sigv4-enabled"] == "true"
    assert iceberg_catalog.properties(one.catalog) == {
        "uri": "http://h", "s3.endpoint": "http://s", "s3.region": "r",
        "rest.sigv4-enabled": "true",
        "auth": {"type": "basic", "basic": {"username": "u", "password": "p"}},
    }  # fmt: skip
    assert "'p'" not in repr(one)


@pytest.mark.parametrize("sink", ["delta", "parquet", "iceberg-jar", "delta-jar"])
def test_other_kinds_know_no_catalog(sink: str) -> None:
    with pytest.raises(PipelineError, match=f"sink = '{sink}' knows none; set sink = 'iceberg'"):
        declared(f"sink = '{sink}'\ncatalog = {{ type = 'rest', uri = 'http://h' }}")


def test_a_catalog_that_cannot_be_committed_to_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"catalog\.type: 'dynamodb' is not known; known: rest"):
        declared("sink = 'iceberg'\ncatalog = { type = 'dynamodb' }")


@pytest.mark.parametrize(
    ("catalog", "advice"),
    [
        ({"type": "resst", "uri": "http://h"}, "'resst' is not .*of type rest, glue"),
        ({"type": "rest"}, "URI missing"),
        ({"type": "hive", "uri": "thrift://h:1"}, r"pip install 'pyiceberg\[hive\]'"),
        ({"uri": f"postgresql+psycopg2://u:{SECRET}@h/d"}, "pip install 'pyiceberg.*postgres"),
        ({"uri": "http://127.0.0.1:9", "token": SECRET}, "ConnectionError.*look at catalog and"),
        ({"uri": f"http://u:{SECRET}@127.0.0.1:9"}, "ConnectionError.*look at catalog and"),
        ({"type": "sql", "uri": f"mssql://u:{SECRET}@h", "x": "y"}, "look at catalog|pip install"),
        ({"type": "sql", "uri": f"bad {SECRET}", "password": SECRET}, "look at catalog"),
    ],
)
def test_trouble_is_told_without_passwords(catalog: dict[str, str], advice: str) -> None:
    with pytest.raises(SinkRefused, match=advice) as told:
        probe(at(**catalog))
    error: BaseException | None = told.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_a_catalog_that_fails_later_is_no_refusal(tmp_path: Path) -> None:
    """Another attempt may succeed, so a long run makes one."""
    place = dataclasses.replace(
        at(type="sql", uri=f"sqlite:///{tmp_path}/none/mine.db"), uri=f"{tmp_path}/lake/bronze"
    )
    with pytest.raises(CatalogFailed):
        open_table(place).state()


def test_several_open_a_new_catalog_at_once(tmp_path: Path) -> None:
    """As a pipeline does and the one that tells the console of it."""
    for turn in range(5):
        place = dataclasses.replace(
            at(type="sql", uri=f"sqlite:///{tmp_path}/{turn}.db"), uri=f"{tmp_path}/lake/bronze"
        )
        barrier = threading.Barrier(4)

        def look(place: TableAt = place, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait()
            return open_table(place).exists()

        with ThreadPoolExecutor(4) as threads:
            assert [one.result() for one in [threads.submit(look) for _ in range(4)]] == [False] * 4


def test_a_catalog_of_local_tables(tmp_path: Path) -> None:
    place = dataclasses.replace(
        at(type="sql", uri=f"sqlite:///{tmp_path}/mine.db"), uri=f"{tmp_path}/lake/bronze"
    )
    probe(place)
    sink = open_table(place)
    sink.prepare(pa.schema([("offset", pa.int64())]))
    assert open_table(place).exists()
    assert not (tmp_path / "lake" / "iceberg.db").exists()
    sink.drop()
    assert list((tmp_path / "lake").iterdir()) == []


def test_a_crash_before_the_partitions_is_made_up_for(tmp_path: Path) -> None:
    schema = pa.schema([("offset", pa.int64()), ("region", pa.string())])
    place = TableAt(f"{tmp_path}/lake/silver", "iceberg", "p", "silver")
    open_table(place).prepare(schema)
    later: Any = open_table(dataclasses.replace(place, partition_by=("region",)))
    later.prepare(schema)
    assert [one.name for one in later._current().spec().fields] == ["region"]

"""Tables written by the jars of Delta and Iceberg: whoever dies, nothing is lost or doubled."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import jar_files
import pyspark
import pytest
from drivers import Java, command, finish
from lake import audit, forget_last_commit, make_topic, orders, places, produce, table

import pentalog
from pentalog.tables import jars
from pentalog.tables.pipeline import LAYERS, Pipeline, PipelineError, TableAt, load, parse
from pentalog.tables.sinks import SinkRefused, open_table, probe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TORTURE = "PENTALOG_TORTURE" in os.environ
KINDS = [jars.DELTA.name, jars.ICEBERG.name]
POINTS = ("after-files:2", *(f"after-commit:{layer}" for layer in LAYERS))
"""The last is the moment between the tables' commits and Spark's."""
UNITS = Path(__file__).resolve().parents[1] / "unit" / "tables"
FILE = """
[pipeline.orders]
from = "{server}"
topics = ["{topic}"]
into = "{into}"
sink = "{sink}"
batch_rows_max = 150
spark = {{ "spark.jars" = "{jars}", "spark.databricks.delta.snapshotPartitions" = "2" }}
decode = {{ format = "json", schema = "id BIGINT, amount DOUBLE" }}
"""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def java(kind: str, spark: SparkSession) -> Iterator[Java]:
    """A Java that has the jars; the session only keeps what one that is started first leaves."""
    started = Java(jar_files.jars(kind))
    yield started
    started.kill()


def pipeline_file(
    server: str, topic: str, folder: Path, sink: str, files: str
) -> tuple[Path, Pipeline]:
    file = folder / "pipeline.toml"
    into = folder / "lake"
    file.write_text(FILE.format(server=server, topic=topic, into=into, sink=sink, jars=files))
    return file, load(file)["orders"]


def run(java: Java, file: Path, code: int = 0, **more: str) -> str:
    found, out, err = finish(
        command("run", str(file), "--once", "--json", **java.environment(), **more)
    )
    assert found == code, err[-3000:]
    return out + err


@pytest.mark.timeout(900)
def test_killed_at_exact_lines_and_run_again(
    broker: pentalog.Broker, java: Java, topic: str, tmp_path: Path, kind: str
) -> None:
    server = broker.address("kafka")
    make_topic(server, topic)
    values: list[str | bytes] = [
        b"bad" if one % 20 == 0 else each for one, each in enumerate(orders(0, 300))
    ]
    produce(server, topic, values)
    file, declared = pipeline_file(server, topic, tmp_path, kind, jar_files.jars(kind))
    for point in POINTS if TORTURE else POINTS[-1:]:
        run(java, file, -9, FAILPOINT_STEP=point)
        for layer in LAYERS:
            found = places(declared, layer)
            assert len(set(found)) == len(found), layer
    run(java, file)
    audit(declared, 300)
    if TORTURE:
        before = {layer: open_table(declared.table(layer)).ledger() for layer in LAYERS}
        forget_last_commit(declared)
        run(java, file)
        audit(declared, 300)
        assert before == {layer: open_table(declared.table(layer)).ledger() for layer in LAYERS}
    assert len(places(declared, "dead_letters")) == 15
    silver = open_table(declared.table("silver"))
    assert sum(one.rows for one in silver.ledger()) == 285
    query = "select count(*), sum(id), sum(amount) from read_parquet($files)"
    ids = [one for one in range(300) if one % 20]
    assert duckdb.execute(query, {"files": silver.files()}).fetchone() == (
        285,
        sum(ids),
        sum(ids) / 4,
    )
    assert sorted(table(declared, "silver").column("id").to_pylist()) == ids


@pytest.mark.skipif(not TORTURE, reason="part of make torture")
@pytest.mark.timeout(1800)
def test_everything_a_table_can_do(kind: str, spark: SparkSession) -> None:
    """The tests of all kinds of tables, in a process with the jars."""
    environment = {
        **os.environ, "PENTALOG_TABLE_KINDS": kind, "PENTALOG_TABLE_JARS": jar_files.jars(kind),
        # These tests need hypothesis, which the first place hides from Spark's workers.
        "PYTHONPATH": os.environ["PYTHONPATH"].partition(os.pathsep)[2],
    }  # fmt: skip
    files = [str(UNITS / f"test_table_{name}.py") for name in ("sinks", "replacement")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]


def test_a_jar_that_is_not_there_is_named(spark: SparkSession, kind: str, tmp_path: Path) -> None:
    wanted = {one.name: one for one in (jars.DELTA, jars.ICEBERG)}[kind]
    with pytest.raises(SinkRefused, match=f"spark.jars.packages.*{re.escape(wanted.packages)}"):
        probe(TableAt(f"{tmp_path}/lake/bronze", kind, "p", "bronze", fsync=False))
    assert [one.name for one in (tmp_path / "lake").iterdir() if one.name != "iceberg.db"] == []


@pytest.mark.skipif(not TORTURE, reason="part of make torture")
@pytest.mark.skipif(pyspark.__version__.startswith("4.2."), reason="the jar fits this Spark")
def test_a_jar_of_another_spark_is_named(
    broker: pentalog.Broker, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    server = broker.address("kafka")
    make_topic(server, topic)
    files = jar_files.jars(jars.DELTA.name, fitting=False)
    file, _ = pipeline_file(server, topic, tmp_path, jars.DELTA.name, files)
    java = Java(files)
    try:
        told = run(java, file, 1)
    finally:
        java.kill()
    assert f"does not fit Spark {pyspark.__version__}" in told
    assert "pip install 'pyspark==4.2.*'" in told


def test_pipelines_of_one_session_agree_about_it() -> None:
    def declared(**settings: dict[str, str]) -> list[Pipeline]:
        given = {
            name: {"data": "d", "topics": ["t"], "into": f"lake/{name}", "spark": spark}
            for name, spark in settings.items()
        }
        return list(parse({"pipeline": given}).values())

    one = {"spark.jars": "a.jar,b.jar", "spark.x": "1"}
    found = jars.settings(declared(a=one, b={"spark.jars": "b.jar,c.jar"}), "d.jar")
    assert found == {"spark.jars": "d.jar,a.jar,b.jar,c.jar", "spark.x": "1"}
    with pytest.raises(PipelineError, match=r"spark\.x = '2', but another pipeline has '1'"):
        jars.settings(declared(a=one, b={"spark.x": "2"}))
    reading = {"spark.sql.extensions": "a.B", "spark.sql.catalog.c": "a.C", "spark.y": "1", **one}
    assert jars.reading_settings(declared(a=reading, b={"spark.x": "2"})) == {"spark.y": "1"}

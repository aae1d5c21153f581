"""A pipeline on a real YARN, whose files name an HDFS as what a path without a scheme means."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import hadoop_cluster
import pytest
from drivers import command, end_group, finish
from hadoop_cluster import Cluster
from lake import audit, declare, make_topic, orders, places, produce, run
from pyspark.sql import SparkSession

import pentalog
from pentalog.tables import verification
from pentalog.tables.pipeline import Pipeline, load
from pentalog.tables.sinks import open_table

TORTURE = "PENTALOG_TORTURE" in os.environ
POINTS = ("after-files:2", "after-commit:silver")
FILE = """
[pipeline.orders]
from = "{server}"
topics = ["{topic}"]
into = "{into}"
batch_rows_max = 500
decode = {{ format = "json", schema = "id BIGINT, amount DOUBLE" }}
"""


@pytest.fixture
def cluster(_java_installed: None, tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "hadoop"
    folder.mkdir()
    with hadoop_cluster.started(folder) as made:
        yield made


def test_paths_are_not_those_of_the_default_file_system(
    broker: pentalog.Broker, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    server = broker.address("kafka")
    make_topic(server, topic)
    declared = declare(server, topic, tmp_path / "lake")
    elsewhere = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    elsewhere.conf.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    with pytest.raises(Exception, match="Connection refused"):
        elsewhere.read.text(str(tmp_path))
    for first in (0, 100):
        produce(server, topic, orders(first, 100))
        run(elsewhere, declared)
    audit(declared, 200)
    assert verification.verify(elsewhere, declared).ok
    assert open_table(declared.table("silver")).read(elsewhere).count() == 200


@pytest.mark.skipif(not TORTURE, reason="part of make torture")
@pytest.mark.timeout(1800)
def test_a_pipeline_on_yarn(
    cluster: Cluster, broker: pentalog.Broker, topic: str, tmp_path: Path
) -> None:
    server = broker.address("kafka")
    make_topic(server, topic)
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE.format(server=server, topic=topic, into=tmp_path / "lake"))
    declared = load(file)["orders"]
    produce(server, topic, [*orders(0, 2000), "poison"])
    _run(cluster, file)
    audit(declared, 2001)
    produce(server, topic, orders(2000, 3000))
    for point in POINTS:
        _run(cluster, file, -9, FAILPOINT_STEP=point)
        for layer in ("bronze", "silver"):
            found = places(declared, layer)
            assert len(set(found)) == len(found), (point, layer)
    _kill_after_a_commit(cluster, file, declared)
    produce(server, topic, orders(5000, 1000))
    _run(cluster, file)
    audit(declared, 6001)
    assert len(places(declared, "dead_letters")) == 1
    verified = subprocess.run(
        [sys.executable, "-m", "pentalog", "verify", str(file)], env=_environment(cluster),
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert verified.returncode == 0, verified.stderr[-3000:]
    assert "all 6001 offsets are accounted for" in verified.stdout
    # Nobody ends what a killed driver left; it ends by itself.
    deadline = time.monotonic() + 600
    while cluster.applications("ACCEPTED", "RUNNING"):
        assert time.monotonic() < deadline, "an application outlives its driver"
        time.sleep(0.5)
    ended = cluster.applications("FINISHED", "FAILED", "KILLED")
    assert len(ended) == 3 + len(POINTS)
    assert {one["applicationType"] for one in ended} == {"SPARK"}


def _environment(cluster: Cluster) -> dict[str, str]:
    return {**os.environ, "HADOOP_CONF_DIR": str(cluster.configuration)}


def _begun(cluster: Cluster, file: Path, **more: str) -> subprocess.Popen[str]:
    words = ("run", str(file), "--once", "--json", "--master", "yarn")
    return command(*words, HADOOP_CONF_DIR=str(cluster.configuration), **more)


def _run(cluster: Cluster, file: Path, code: int = 0, **more: str) -> None:
    found, _, err = finish(_begun(cluster, file, **more))
    assert found == code, err[-3000:]


def _kill_after_a_commit(cluster: Cluster, file: Path, declared: Pipeline) -> None:
    """kill -9 of a driver and its Java at once, in the middle of its work."""
    before = len(open_table(declared.table("bronze")).ledger())
    running = _begun(cluster, file)
    try:
        while len(open_table(declared.table("bronze")).ledger()) == before:
            assert running.poll() is None, running.communicate()
            time.sleep(0.05)
    finally:
        end_group(running)

"""A pipeline that runs on real Spark, watched in a real browser."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.console.world import Browser, client, write

import pentalog
from pentalog.clients.kafka import Cluster
from pentalog.model.types import Record
from pentalog.tables import announcing, archive, pipeline
from pentalog.tables.checkpoint import INGEST, Checkpoint

pytestmark = pytest.mark.clients

SPARK_S = 200.0
"""Until Spark has its first batch behind it, on a machine that has other things to do."""


def told_of(cluster: Cluster) -> tuple[str, int]:
    """What the pipeline says of itself: its state, and where its silver table ends."""
    (one,) = [one for one in announcing.announced(cluster) if one["pipeline"] == "orders"]
    return one["state"], one["tables"]["silver"]["covered"].get("orders/0", [0, 0])[1]


def test_a_pipeline_is_watched(
    browser: Browser, broker: pentalog.Broker, pipeline_file: Path, tmp_path: Path
) -> None:
    try:
        archive.java()
    except archive.NoJava as why:
        pytest.skip(str(why))
    with client(broker) as cluster:
        write(cluster, "orders", *(Record(b'{"id": %d}' % one) for one in range(300)))
        browser.open("/pipelines")
        browser.wait_text("pipeline-state", "new")
        browser.wait_text("pipeline-lag", "300")
        errors = (tmp_path / "errors").open("wb")
        with errors, subprocess.Popen(
            [sys.executable, "-m", "pentalog", "table", "run", str(pipeline_file)],
            stdout=subprocess.DEVNULL, stderr=errors, env=dict(os.environ),
        ) as running:  # fmt: skip
            try:
                browser.wait_text("pipeline-state", "running", patience_s=SPARK_S)
                browser.wait_text("pipeline-lag", "0")
                browser.wait_text("pipeline-tables", "bronze", "silver", "orders/0", "300")
                browser.wait_text("pipeline-ledger", "orders/0 0..300")
                browser.picture("pipeline")
                browser.until(lambda: told_of(cluster) == ("running", 300), "what it tells")
            finally:
                running.send_signal(signal.SIGTERM)
                running.wait(60)
        browser.wait_text("pipeline-state", "stopped")
        assert told_of(cluster) == ("stopped", 300)


def test_a_pipeline_that_no_setting_names_tells_of_itself(
    browser: Browser, broker: pentalog.Broker, tmp_path: Path
) -> None:
    """As `table run` does it, without Spark: it is told what lies beside the tables."""
    keys = {
        "from": broker.address("kafka"), "topics": ["shipments"], "into": str(tmp_path / "lake"),
    }  # fmt: skip
    declared = pipeline.parse({"pipeline": {"shipments": keys}})["shipments"]
    last = {"pid": os.getpid(), "rows": 1200, "rows_per_second": 240.0, "batch_ms": 5000}
    with client(broker) as cluster:
        cluster.create_topic("shipments", 1)
        write(cluster, "shipments", *(Record(b"%d" % one) for one in range(40)))
    Checkpoint(declared.checkpoint, INGEST).set_progress(last)
    with announcing.Announcer([declared]):
        browser.open("/pipelines")
        card = "pipeline-shipments"
        browser.wait_text(card, "running", "shipments into", "40", "240", "1,200 rows in 5000 ms")
        browser.picture("pipeline-announced")
    browser.wait_text(card, "stopped")

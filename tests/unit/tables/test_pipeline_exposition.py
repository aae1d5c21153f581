"""What pipelines tell Prometheus."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pentalog.tables.exposition import METRICS, MetricsServer, PipelineMetrics


def progress(pipeline: str, batch: int, **more: Any) -> dict[str, Any]:
    return {
        "pipeline": pipeline, "batch": batch, "rows": 100, "rows_per_second": 50.5,
        "batch_ms": 1980, "lag": 7, **more,
    }  # fmt: skip


def fetched(port: int, path: str = "/metrics") -> tuple[str, str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_batches_are_counted_and_served() -> None:
    metrics = PipelineMetrics()
    with MetricsServer("127.0.0.1:0", metrics) as server:
        kind, text = fetched(server.port)
        assert kind.startswith("text/plain; version=0.0.4")
        assert not [line for line in text.splitlines() if not line.startswith("#")]
        for batch in (0, 1):
            versions = {"bronze": batch + 3}
            metrics.take(progress("a", batch, dead_letters=2, dropped=1, versions=versions))
        metrics.take(progress("a.gold.g", 4))
        _, text = fetched(server.port)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetched(server.port, "/")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    label = '{pipeline="a"}'
    assert values[f"pentalog_pipeline_rows_total{label}"] == "200"
    assert values[f"pentalog_pipeline_dead_letters_total{label}"] == "4"
    assert values[f"pentalog_pipeline_dropped_total{label}"] == "2"
    assert values[f"pentalog_pipeline_batch{label}"] == "1"
    assert values[f"pentalog_pipeline_batch_seconds{label}"] == "1.98"
    assert values[f"pentalog_pipeline_lag_records{label}"] == "7"
    assert values['pentalog_pipeline_table_version{pipeline="a",table="bronze"}'] == "4"
    assert values['pentalog_pipeline_batches_total{pipeline="a.gold.g"}'] == "1"


@pytest.mark.parametrize("address", ["", "9464", "localhost:", "localhost:x", "localhost:70000"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"no HOST:PORT, for example 127\.0\.0\.1:9464"):
        MetricsServer(address, PipelineMetrics())


def test_every_metric_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "pipeline.md").read_text()
    shown = set(re.findall(r"`pentalog_pipeline_([a-z_]+)`", text))
    assert shown == {one.name for one in METRICS}

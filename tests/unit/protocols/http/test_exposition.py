"""Names of metrics keep Prometheus' rules, and whoever shows them names those there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pentalog.metrics import SECONDS_BOUNDS, Histogram, label_value
from pentalog.protocols.http.exposition import FAMILIES

ROOT = Path(__file__).resolve().parents[4]


def test_names_keep_the_rules() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        assert re.fullmatch(r"pentalog_[a-z_]+", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert family.meaning.endswith(".")


def test_the_dashboard_shows_what_there_is() -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries.append(dashboard["templating"]["list"][1]["query"]["query"])
    shown = {name for query in queries for name in re.findall(r"pentalog_\w+", query)}
    known = {family.name for family in FAMILIES}
    known |= {f"{family.name}_bucket" for family in FAMILIES if family.kind == "histogram"}
    assert shown <= known
    assert len(shown) > 20


def test_durations_are_counted_by_class() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.0005, 0.0006, 4.0, 100.0):
        histogram.observe(seconds)
    counts = dict(histogram.cumulative())
    assert counts[0.0005] == 2
    assert counts[0.001] == 3
    assert counts[SECONDS_BOUNDS[-1]] == 4
    assert histogram.count == 5
    assert histogram.sum_s == 104.0011


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ('a"b\\c', 'a\\"b\\\\c'),
        ("a\nb", "a\\nb"),
        ("\0\r\x1b\x9b", "\\\\x00\\\\x0d\\\\x1b\\\\x9b"),
        ("grüße 日本", "grüße 日本"),
    ],
)
def test_no_name_breaks_out_of_its_label(name: str, value: str) -> None:
    assert label_value(name) == value
    assert len(value.splitlines()) == 1

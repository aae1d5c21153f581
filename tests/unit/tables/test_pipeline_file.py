"""The pipeline file: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from pentalog.tables import pipeline
from pentalog.tables.pipeline import Decode, Gold, Pipeline, PipelineError, Rule

SMALLEST = """
[pipeline.orders]
from = "127.0.0.1:9092"            # a Kafka door or Kafka cluster; or data = "DIR"
topics = ["orders"]
into = "lake/orders"               # becomes lake/orders/bronze, silver, dead_letters
decode = { format = "json", schema = "id BIGINT, amount DOUBLE" }
"""


def parsed(**keys: Any) -> Pipeline:
    given = {"from": "h:1", "topics": ["t"], "into": "x", **keys}
    return pipeline.parse({"pipeline": {"p": given}})["p"]


def test_the_smallest_file_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(SMALLEST)
    found = pipeline.load(file)["orders"]
    assert found.servers == "127.0.0.1:9092"
    assert found.topics == ("orders",)
    assert found.decode == Decode("json", "id BIGINT, amount DOUBLE")
    assert found.group == "pentalog.orders"
    assert found.table("silver").uri == str(Path("lake/orders/silver").absolute())
    assert found.checkpoint == f"{Path('lake/orders').absolute()}/_checkpoint"
    assert found.layers == ("bronze", "silver", "dead_letters")


def test_everything_can_be_said() -> None:
    found = parsed(
        decode={"format": "json", "schema": "id BIGINT, at TIMESTAMP", "infer": True},
        columns={"id": "id", "hour": "hour(at)"},
        rules=[{"expect": "id > 0", "action": "drop"}, {"name": "even", "expect": "id % 2 = 0"}],
        event_time="at",
        partition_by=["day", "hour"],
        key="id",
        starting={"t": {"0": 5}},
        gold={"per_minute": {"window": "1 minute", "aggregates": {"n": "count(*)"}, "by": "id"}},
    )
    assert found.rules == (Rule("rule 1", "id > 0", "drop"), Rule("even", "id % 2 = 0"))
    assert found.table("silver").partition_by == ("_day", "_hour")
    assert found.table("bronze").partition_by == ()
    assert found.key == ("id",)
    assert found.starting == '{"t": {"0": 5}}'
    assert found.gold == (Gold("per_minute", "1 minute", {"n": "count(*)"}, ("id",)),)
    assert found.layers[-1] == "gold/per_minute"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"topcs": []}, r"pipeline\.p\.topcs: no such key; did you mean 'topics'\?"),
        ({"decode": "jsn"}, r"decode\.format: 'jsn' is not known; did you mean 'json'\?"),
        ({"decode": {"format": "csv"}}, r"decode\.schema: csv needs one"),
        ({"decode": {"frmat": "csv"}}, r"decode\.frmat: no such key; did you mean 'format'\?"),
        ({"data": "d"}, r"give either from = 'HOST:PORT' or data = 'DIR'"),
        ({"pattern": "x"}, r"give either topics = \['NAME'\] or pattern"),
        ({"sink": "delt"}, r"sink: 'delt' is not known; did you mean 'delta'\?"),
        ({"sink": "delta-jars"}, r"sink: 'delta-jars' is not known; did you mean 'delta-jar'\?"),
        ({"spark": "x"}, r"spark: 'x' must be a table, \{ key = value \}"),
        ({"trigger": "soon"}, r"trigger: 'soon' is no duration; write it as '10 seconds'"),
        ({"file_bytes": "big"}, r"file_bytes: 'big' must be a whole number"),
        ({"fsync": 1}, r"fsync: 1 must be true or false"),
        ({"rules": [{"name": "x"}]}, r"rules\[0\]\.expect: is missing; it is an SQL condition"),
        ({"rules": [{"expect": "a", "action": "die"}]}, r"rules\[0\]\.action: 'die' is not known"),
        ({"gold": {"g": {"window": "1 minute"}}}, r"gold\.g\.aggregates: is missing"),
        ({"decode": "json", "key": "id"}, r"key: needs columns that are known before records"),
        ({"columns": {"_topic": "1"}}, r"columns\._topic: a column is letters, digits and '_'"),
        (
            {"decode": {"schema": "id BIGINT"}},
            r"decode\.schema: format = 'raw' has none; set format",
        ),
        ({"decode": {"format": "text", "infer": True}}, r"decode\.infer: format = 'text' has none"),
        ({"retention": "0 days"}, r"retention: '0 days' must be longer than nothing"),
        ({"lease": "10m"}, r"lease: '10m' is no duration"),
        ({"compact_every": -1}, r"compact_every: -1 must be 0 or more"),
        ({"topics": "", "into": "x"}, r"topics: '' must be a list of texts"),
    ],
)
def test_refusals_name_the_key_and_what_it_may_be(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        parsed(**keys)


def test_a_file_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "empty.toml"
    file.write_text("")
    with pytest.raises(PipelineError, match=r"empty\.toml: no pipeline; a file declares at least"):
        pipeline.load(file)
    with pytest.raises(PipelineError, match=r"nowhere\.toml: No such file"):
        pipeline.load(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("10 seconds", 10_000),
        ("1 minute", 60_000),
        ("2d", None),
        ("500 ms", 500),
        ("5m", None),
        ("5ms", 5),
    ],
)
def test_durations(text: str, ms: int | None) -> None:
    if ms is None:
        with pytest.raises(ValueError, match="no duration"):
            pipeline.duration_ms(text)
    else:
        assert pipeline.duration_ms(text) == ms


def test_progress_on_an_object_store_lies_beside_the_file() -> None:
    assert parsed(into="s3://bucket/x").checkpoint == ".pentalog/p"
    assert parsed(into="s3://bucket/x").table("bronze").uri == "s3://bucket/x/bronze"


def test_every_key_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "pipeline.md").read_text()
    shown = set(re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE))
    kinds = (Pipeline, Decode, Rule, Gold)
    keys = {
        pipeline.key_of(one) for kind in kinds for one in dataclasses.fields(kind) if one.metadata
    }
    assert keys - shown == set()
    assert shown - keys == set()


@pytest.mark.parametrize("name", ["smallest", "shop", "formats", "catalog"])
def test_the_examples_are_accepted(name: str) -> None:
    folder = Path(__file__).parents[3] / "examples" / "pipelines"
    assert pipeline.load(folder / f"{name}.toml")


def test_the_documents_begin_with_the_smallest_file() -> None:
    root = Path(__file__).parents[3]
    smallest = (root / "examples" / "pipelines" / "smallest.toml").read_text()
    assert smallest in (root / "docs" / "pipeline.md").read_text()

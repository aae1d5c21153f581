"""Pipelines that tell their broker of themselves, without Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pentalog
from pentalog.clients.kafka import ClientOptions, Cluster, GroupOffset, commit
from pentalog.clients.kafka.groups import delete
from pentalog.model.types import Partition
from pentalog.tables import announcing, pipeline, status
from pentalog.tables.checkpoint import INGEST, Checkpoint


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with (
        pentalog.Broker() as broker,
        Cluster(broker.address("kafka"), ClientOptions()) as asking,
    ):
        asking.create_topic("orders", 2)
        yield asking


@pytest.fixture
def declared(cluster: Cluster, tmp_path: Path) -> pipeline.Pipeline:
    ((host, port),) = cluster._servers
    keys = {"from": f"{host}:{port}", "topics": ["orders"], "into": str(tmp_path / "lake")}
    return pipeline.parse({"pipeline": {"shop": keys}})["shop"]


def told(cluster: Cluster) -> dict[str, Any]:
    (one,) = announcing.announced(cluster)
    return one


def test_it_is_seen_while_it_runs_and_after(cluster: Cluster, declared: pipeline.Pipeline) -> None:
    batch = {"pid": os.getpid(), "rows": 7, "rows_per_second": 3.5, "batch_ms": 2000}
    Checkpoint(declared.checkpoint, INGEST).set_progress(batch)
    running = announcing.Announcer([declared])
    with running:
        running._tell(declared, ended=False)
        found = told(cluster)
        assert (found["pipeline"], found["state"], found["topics"]) == (
            "shop",
            "running",
            ["orders"],
        )
        assert found["last_batch"]["rows_per_second"] == 3.5
        assert found["lag"]["records"] == 0
        assert (found["dead_letters"], found["ledger"]) == (0, [])
        assert found["into"] == declared.into
    assert told(cluster)["state"] == "stopped"


def test_one_that_died_is_said_to_be_silent(
    cluster: Cluster, declared: pipeline.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    Checkpoint(declared.checkpoint, INGEST).set_progress({"pid": os.getpid()})
    announcing.announce(cluster, declared, status.describe_whole(declared))
    assert told(cluster)["state"] == "running"
    monkeypatch.setattr(announcing, "SILENT_AFTER_S", -1.0)
    assert told(cluster)["state"].startswith("silent for ")


def test_what_is_too_long_is_cut_where_it_is_least_missed(
    cluster: Cluster, declared: pipeline.Pipeline
) -> None:
    whole = status.describe_whole(declared)
    entry = {"layer": "bronze", "time_ms": 1, "batch": 1, "rows": 1, "ranges": "orders/0 0..1" * 9}
    covered = {f"orders/{index}": [0, 1] for index in range(900)}
    whole["ledger"] = [entry] * 50
    announcing.announce(cluster, declared, whole)
    assert 10 < len(told(cluster)["ledger"]) < 50
    whole["tables"]["silver"]["covered"] = covered
    whole["topics"] = [f"orders-{number}" for number in range(900)]
    announcing.announce(cluster, declared, whole)
    assert (told(cluster)["ledger"], told(cluster)["topics"]) == ([], ["900 topics"])
    assert len(whole["ledger"]) == 50


SOUND = json.dumps(
    {"pipeline": "sound", "state": "x", "topics": [], "into": "", "tables": {}, "lag": {}}
    | {"last_batch": {}, "ledger": [], "dead_letters": 0, "time_ms": 1}
)


def test_none_hides_another_of_the_same_name(cluster: Cluster) -> None:
    for group in ("first.status", "second.status"):
        commit(
            cluster, group, {Partition("orders", 0): GroupOffset(0, f"pentalog pipeline {SOUND}")}
        )
    found = announcing.announced(cluster)
    delete(cluster, ["first.status", "second.status"])
    shown = [(one["pipeline"], one["told_in"]) for one in found if one["pipeline"] == "sound"]
    assert shown == [("sound", "first.status"), ("sound", "second.status")]


@pytest.mark.parametrize(
    "text",
    [
        "pentalog pipeline ",
        "pentalog pipeline []",
        'pentalog pipeline {"time_ms": 1e999, "state": "running"}',
        'pentalog pipeline {"time_ms": 1, "state": "x", "pipeline": "a"}',
        "pentalog pipeline "
        + json.dumps(
            {"pipeline": '" onclick="', "state": "x", "topics": [], "into": "", "tables": {}}
            | {"lag": {}, "last_batch": {}, "ledger": [], "dead_letters": 0, "time_ms": 1}
        ),
        "pentalog pipeline " + "[" * 3000,
        "pentalog pipeline " + '{"a":' * 600 + "1",
        "pentalog pipeline " + SOUND.replace('"dead_letters": 0', '"dead_letters": NaN'),
        "pentalog pipeline " + SOUND.replace('"dead_letters": 0', '"dead_letters": 1e300'),
        "pentalog pipeline " + SOUND.replace('"dead_letters": 0', f'"dead_letters": {9**40}'),
        "pentalog pipeline " + SOUND.replace('"lag": {}', '"lag": {"records": "<b>"}'),
        "pentalog pipeline " + SOUND.replace('"lag": {}', '"lag": {"records": Infinity}'),
        "pentalog pipeline " + SOUND.replace('"into": ""', '"into": "\\ud800"'),
        "pentalog pipeline " + SOUND.replace('"topics": []', '"topics": [[]]'),
        "pentalog pipeline " + SOUND.replace('"tables": {}', '"tables": {"bronze": 1}'),
        "pentalog pipeline "
        + SOUND.replace('"tables": {}', '"tables": {"bronze": {"covered": {"a": [1]}}}'),
        "pentalog pipeline " + SOUND.replace('"ledger": []', '"ledger": [{"layer": 1}]'),
        "pentalog pipeline " + SOUND.replace('"time_ms": 1', '"time_ms": 1e99'),
        "something else",
    ],
)
def test_nonsense_is_left_out(cluster: Cluster, text: str) -> None:
    at = Partition("orders", 1)
    before = announcing.announced(cluster)
    commit(cluster, "strange.status", {at: GroupOffset(0, text)})
    assert announcing.announced(cluster) == before


def test_a_broker_that_is_gone_stops_nothing(declared: pipeline.Pipeline) -> None:
    keys = {"from": "127.0.0.1:1", "topics": ["orders"], "into": declared.into}
    options = {"timeoutMs": "100"}
    gone = pipeline.parse({"pipeline": {"shop": {**keys, "source_options": options}}})["shop"]
    with announcing.Announcer([gone]):
        pass

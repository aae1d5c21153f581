"""Requests about several brokers, answered by one that is alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from operator_bench import Bench

from pentalog.broker.port import TopicSpec
from pentalog.protocols.kafka import features
from pentalog.protocols.kafka.features import Feature

SOON = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def topic(bench: Bench) -> None:
    bench.topics.create(TopicSpec(name="a"))


@pytest.mark.parametrize("version", [1, 2])
def test_partitions_stay_in_the_only_directory(bench: Bench, version: int) -> None:
    def move(path: str, *topics: tuple[str, list[int]]) -> dict[str, list[tuple[int, int]]]:
        named = [{"name": name, "partitions": parts} for name, parts in topics]
        answer = bench.connect().ask(34, version, dirs=[{"path": path, "topics": named}])
        return {
            each.topic_name: [(part.partition_index, part.error_code) for part in each.partitions]
            for each in answer.results
        }

    described = bench.connect().ask(35, 1, topics=None).results[0].log_dir
    assert move(described, ("a", [0, 1, 2]), ("b", [0])) == {
        "a": [(0, 0), (1, 0), (2, 3)],
        "b": [(0, 3)],
    }
    assert move("/elsewhere", ("a", [0])) == {"a": [(0, 57)]}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_leaders_are_elected_already(bench: Bench, version: int) -> None:
    def elect(topics: Any, kind: int = 0) -> Any:
        return bench.connect().ask(
            43, version, election_type=kind, topic_partitions=topics, timeout=SOON
        )

    asked = [{"topic": "a", "partitions": [0, 5]}, {"topic": "b", "partitions": [0]}]
    answer = elect(asked)
    found = [
        (each.topic, part.partition_id, part.error_code, bool(part.error_message))
        for each in answer.replica_election_results
        for part in each.partition_result
    ]
    assert found == [("a", 0, 84, True), ("a", 5, 3, True), ("b", 0, 3, True)]
    assert elect(None).replica_election_results == ()
    if version >= 1:
        assert elect(None).error_code == 0
        assert elect(asked, kind=7).error_code == 42


@pytest.mark.parametrize("version", [0, 1])
def test_copies_cannot_be_moved(bench: Bench, version: int) -> None:
    def assign(topic: str, index: int, replicas: list[int] | None) -> tuple[int, bool]:
        part = {"partition_index": index, "replicas": replicas}
        answer = bench.connect().ask(
            45,
            version,
            timeout=SOON,
            allow_replication_factor_change=False,
            topics=[{"name": topic, "partitions": [part]}],
        )
        assert answer.error_code == 0
        if version == 1:
            assert answer.allow_replication_factor_change is False
        (result,) = answer.responses[0].partitions
        assert (answer.responses[0].name, result.partition_index) == (topic, index)
        return result.error_code, bool(result.error_message)

    assert assign("a", 0, [3]) == (0, False)
    assert assign("a", 0, [4]) == (39, True)
    assert assign("a", 0, [3, 4]) == (39, True)
    assert assign("a", 0, []) == (39, True)
    assert assign("a", 0, None) == (85, True)
    assert assign("a", 2, [3]) == (3, True)
    assert assign("b", 0, [3]) == (3, True)


@pytest.mark.parametrize("topics", [None, [{"name": "a", "partition_indexes": [0]}]])
def test_nothing_is_being_moved(bench: Bench, topics: Any) -> None:
    answer = bench.connect().ask(46, 0, timeout=SOON, topics=topics)
    assert (answer.error_code, answer.topics) == (0, ())


@pytest.mark.parametrize("version", [0, 1, 2])
def test_features_stay_at_their_level(
    bench: Bench, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(features.FEATURES, "test.version", Feature(2))  # type: ignore[arg-type]

    def update(*levels: tuple[str, int], kind: int = 1) -> list[int]:
        updates = [
            {
                "feature": name,
                "max_version_level": level,
                "upgrade_type": kind,
                "allow_downgrade": False,
            }
            for name, level in levels
        ]
        answer = bench.connect().ask(
            57, version, timeout=SOON, feature_updates=updates, validate_only=False
        )
        if version >= 2 or answer.error_code:
            return [answer.error_code]
        return [each.error_code for each in answer.results]

    assert update(("test.version", 2)) == [0]
    assert update(("test.version", 1)) == [95]
    assert update(("no.such", 1)) == [95]
    assert update() == [42]
    both = update(("test.version", 2), ("no.such", 1))
    assert both == ([95] if version >= 2 else [0, 95])
    if version >= 1:
        assert update(("test.version", 2), kind=9) == [42]

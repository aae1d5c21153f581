"""CreateTopics, DeleteTopics, CreatePartitions and their errors, in every version."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from admin_line import AdminLine

from pentalog.broker.port import TopicSpec

TIMEOUT = timedelta(seconds=1)


def wish(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": more.get("assignments", ()),
        "configs": [
            {"name": key, "value": value} for key, value in more.get("configs", {}).items()
        ],
    }


def assign(*brokers: tuple[int, ...]) -> list[dict[str, Any]]:
    return [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(brokers)]


def create(
    line: AdminLine, *topics: dict[str, Any], version: int = 7, validate_only: bool = False
) -> Any:
    return line.ask(19, version, topics=topics, timeout=TIMEOUT, validate_only=validate_only).topics


def names(line: AdminLine) -> list[str]:
    return [topic.name for topic in line.broker.topics.all()]


@pytest.mark.parametrize("version", range(2, 8))
def test_create(line: AdminLine, version: int) -> None:
    (made,) = create(line, wish("a", 3, configs={"flush.ms": "5"}), version=version)
    assert (made.name, made.error_code, made.error_message) == ("a", 0, None)
    topic = line.broker.topics.get("a")
    assert topic.partitions == 3
    assert topic.overrides == {"flush.ms": "5"}
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (3, 1)
        configs = {each.name: each for each in made.configs}
        assert configs["flush.ms"].value == "5"
        assert configs["flush.ms"].config_source == 1
        assert configs["retention.ms"].value == "9"
        assert configs["retention.ms"].config_source == 4
        assert configs["segment.ms"].config_source == 5
    if version >= 7:
        assert made.topic_id == topic.topic_id


def test_the_answer_waits_for_the_disk(line: AdminLine) -> None:
    create(line, wish("a"))
    assert line.placed == 1
    create(line, wish("a"), validate_only=True)
    assert line.placed == 1


def test_defaults(line: AdminLine) -> None:
    (made,) = create(line, wish("a", -1, -1))
    assert (made.error_code, made.num_partitions, made.replication_factor) == (0, 2, 1)


def test_a_dry_run_tells_and_does_nothing(line: AdminLine) -> None:
    good, bad = create(
        line,
        wish("a", 3, configs={"flush.ms": "5"}),
        wish("b", configs={"flush.ms": "x"}),
        validate_only=True,
    )
    assert (good.error_code, bad.error_code) == (0, 40)
    assert good.num_partitions == 3
    assert {each.name: each.value for each in good.configs}["flush.ms"] == "5"
    assert names(line) == []


def test_assignment_by_hand(line: AdminLine) -> None:
    (made,) = create(line, wish("a", -1, -1, assignments=assign((3,), (3,), (3,))))
    assert (made.error_code, made.num_partitions) == (0, 3)


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (wish("a b"), 17),
        (wish(""), 17),
        (wish("x" * 250), 17),
        (wish("there"), 36),
        (wish("a", 0), 37),
        (wish("a", -2), 37),
        (wish("a", 10_001), 37),
        (wish("a", 1, 2), 38),
        (wish("a", 1, 0), 38),
        (wish("a", -1, -1, assignments=assign((3, 4))), 39),
        (wish("a", -1, -1, assignments=assign((0,))), 39),
        (wish("a", -1, -1, assignments=assign(())), 39),
        (wish("a", -1, -1, assignments=assign((3,), (3,))[1:]), 39),
        (wish("a", 1, 1, assignments=assign((3,))), 42),
        (wish("a", -1, 1, assignments=assign((3,))), 42),
        (wish("a", configs={"retention.ms": "x"}), 40),
        (wish("a", configs={"retention.ms": None}), 40),
        (wish("a", configs={"no.such": "1"}), 40),
    ],
)
def test_refusals(line: AdminLine, topic: dict[str, Any], code: int) -> None:
    line.broker.topics.create(TopicSpec(name="there"))
    for version in range(2, 8):
        refused, made = create(line, topic, wish(f"good{version}"), version=version)
        assert (refused.error_code, made.error_code) == (code, 0)
        assert refused.name == topic["name"]
        assert refused.error_message
    assert "a" not in names(line)


def test_a_topic_named_twice_is_refused_once(line: AdminLine) -> None:
    twice, good = create(line, wish("a"), wish("b"), wish("a", 2))
    assert (twice.name, twice.error_code) == ("a", 42)
    assert (good.name, good.error_code) == ("b", 0)
    assert names(line) == ["b"]


def test_a_disk_that_fails_is_told(line: AdminLine) -> None:
    assert line.state._database is not None
    line.state._database.execute("PRAGMA query_only = ON")
    good, bad = create(line, wish("a"), wish("b", 0))
    assert (good.error_code, bad.error_code) == (56, 37)
    assert "check the disk" in good.error_message
    line.state._database.execute("PRAGMA query_only = OFF")


def delete(line: AdminLine, version: int, *topics: tuple[str | None, UUID | None]) -> Any:
    return line.ask(
        20,
        version,
        topics=[{"name": name, "topic_id": topic_id} for name, topic_id in topics],
        topic_names=[name for name, _ in topics],
        timeout=TIMEOUT,
    ).responses


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_by_name(line: AdminLine, version: int) -> None:
    line.broker.topics.create(TopicSpec(name="a"))
    gone, unknown = delete(line, version, ("a", None), ("b", None))
    assert (gone.name, gone.error_code) == ("a", 0)
    assert (unknown.name, unknown.error_code) == ("b", 3)
    assert names(line) == []
    assert line.placed == 1


def test_delete_by_id(line: AdminLine) -> None:
    topic = line.broker.topics.create(TopicSpec(name="a"))
    unknown_id = uuid4()
    gone, unknown = delete(line, 6, (None, topic.topic_id), (None, unknown_id))
    assert (gone.name, gone.topic_id, gone.error_code) == ("a", topic.topic_id, 0)
    assert (unknown.name, unknown.topic_id, unknown.error_code) == (None, unknown_id, 100)
    assert names(line) == []


def test_delete_needs_one_way_to_name_a_topic(line: AdminLine) -> None:
    topic = line.broker.topics.create(TopicSpec(name="a"))
    both, neither = delete(line, 6, ("a", topic.topic_id), (None, None))
    assert (both.error_code, neither.error_code) == (42, 42)
    by_name, by_id = delete(line, 6, ("a", None), (None, topic.topic_id))
    assert (by_name.error_code, by_id.error_code) == (42, 42)
    assert names(line) == ["a"]


def grow(line: AdminLine, *topics: dict[str, Any], version: int = 3, dry: bool = False) -> Any:
    return line.ask(37, version, topics=topics, timeout=TIMEOUT, validate_only=dry).results


def more(name: str, count: int, *brokers: tuple[int, ...]) -> dict[str, Any]:
    assignments = [{"broker_ids": ids} for ids in brokers] or None
    return {"name": name, "count": count, "assignments": assignments}


@pytest.mark.parametrize("version", range(4))
def test_grow(line: AdminLine, version: int) -> None:
    for name in ("a", "b"):
        line.broker.topics.create(TopicSpec(name=name, partitions=2))
    answers = grow(line, more("a", 4), more("b", 4, (3,), (3,)), version=version)
    assert [(each.name, each.error_code) for each in answers] == [("a", 0), ("b", 0)]
    assert [topic.partitions for topic in line.broker.topics.all()] == [4, 4]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (more("unknown", 4), 3),
        (more("a", 2), 37),
        (more("a", 1), 37),
        (more("a", -1), 37),
        (more("a", 10_001), 37),
        (more("a", 4, (3,)), 39),
        (more("a", 3, (1,)), 39),
        (more("a", 3, (3, 3)), 39),
    ],
)
def test_growth_refused(line: AdminLine, topic: dict[str, Any], code: int) -> None:
    line.broker.topics.create(TopicSpec(name="a", partitions=2))
    for dry in (True, False):
        (refused,) = grow(line, topic, dry=dry)
        assert refused.error_code == code
        assert refused.error_message
    assert line.broker.topics.get("a").partitions == 2


def test_growth_named_twice_or_dry_does_nothing(line: AdminLine) -> None:
    line.broker.topics.create(TopicSpec(name="a", partitions=2))
    (twice,) = grow(line, more("a", 3), more("a", 4))
    assert twice.error_code == 42
    (dry,) = grow(line, more("a", 3), dry=True)
    assert dry.error_code == 0
    assert line.broker.topics.get("a").partitions == 2

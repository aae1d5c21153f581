"""The quota of partitions made and deleted: refused or muted, by the version of the request."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from operator_bench import Bench, Client, read_answer

from pentalog.broker.operation import Quota

METADATA, CREATE, DELETE, GROW = 3, 19, 20, 37
UNKNOWN = 3
THROTTLED = 89


@pytest.fixture(autouse=True)
def quota(bench: Bench) -> None:
    bench.quotas.change(frozenset({("client", "maker")}), {Quota.CHANGED: 1.0})


def create(client: Client, *names: str, version: int = 7, dry: bool = False) -> Any:
    topics = [
        {
            "name": name,
            "num_partitions": 15,
            "replication_factor": 1,
            "assignments": (),
            "configs": (),
        }
        for name in names
    ]
    return client.ask(
        CREATE, version, topics=topics, timeout=timedelta(seconds=1), validate_only=dry
    )


def delete(client: Client, name: str, *, version: int) -> Any:
    return client.ask(
        DELETE,
        version,
        topics=[{"name": name, "topic_id": None}],
        topic_names=[name],
        timeout=timedelta(seconds=1),
    )


def grow(client: Client, name: str, count: int, *, version: int) -> Any:
    topics = [{"name": name, "count": count, "assignments": None}]
    return client.ask(
        GROW, version, topics=topics, timeout=timedelta(seconds=1), validate_only=False
    )


def throttle_ms(answer: Any) -> float:
    return answer.throttle_time.total_seconds() * 1000


@pytest.mark.parametrize("version", [6, 7])
def test_newer_versions_are_refused(bench: Bench, version: int) -> None:
    client = bench.connect("maker")
    first = create(client, "a", "b", version=version)
    # Eleven partitions may be made at once; the bucket was not empty, so fifteen were.
    assert [topic.error_code for topic in first.topics] == [0, THROTTLED]
    assert throttle_ms(first) == 4_000
    assert client.full
    assert [topic.name for topic in bench.topics.all()] == ["a"]
    bench.runtime.advance(4_000)
    assert not client.full
    second = create(client, "b", version=version)
    assert second.topics[0].error_code == 0
    assert throttle_ms(second) == 0


@pytest.mark.parametrize("version", range(2, 6))
def test_older_versions_are_muted(bench: Bench, version: int) -> None:
    client = bench.connect("maker")
    first = create(client, "a", "b", version=version)
    assert [topic.error_code for topic in first.topics] == [0, 0]
    assert throttle_ms(first) == 19_000
    assert client.full


@pytest.mark.parametrize(("version", "code"), [(4, 0), (5, THROTTLED), (6, THROTTLED)])
def test_deletions_count_too(bench: Bench, version: int, code: int) -> None:
    client = bench.connect("maker")
    assert create(client, "a").topics[0].error_code == 0
    bench.runtime.advance(1_000)
    answer = delete(bench.connect("maker"), "a", version=version)
    assert answer.responses[0].error_code == code
    assert throttle_ms(answer) == (3_000 if code else 18_000)
    assert len(bench.topics.all()) == (1 if code else 0)


@pytest.mark.parametrize(("version", "code"), [(2, 0), (3, THROTTLED)])
def test_added_partitions_count_too(bench: Bench, version: int, code: int) -> None:
    assert create(bench.connect("maker"), "a").topics[0].error_code == 0
    answer = grow(bench.connect("maker"), "a", 20, version=version)
    assert answer.results[0].error_code == code
    assert throttle_ms(answer) == (4_000 if code else 9_000)
    assert bench.topics.get("a").partitions == (15 if code else 20)


def test_topics_made_because_they_are_named_count_too(bench: Bench) -> None:
    def name(topic: str) -> Any:
        return bench.connect("maker").ask(
            METADATA,
            9,
            topics=[{"name": topic}],
            allow_auto_topic_creation=True,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )

    assert create(bench.connect("maker"), "a").topics[0].error_code == 0
    assert name("b").topics[0].error_code == UNKNOWN
    assert [topic.name for topic in bench.topics.all()] == ["a"]
    bench.runtime.advance(5_000)
    for _ in range(2):
        answer = name("b")
    assert answer.topics[0].error_code == 0


def test_what_is_only_checked_is_not_counted_and_others_are_free(bench: Bench) -> None:
    client, other = bench.connect("maker"), bench.connect("other")
    for _ in range(5):
        assert throttle_ms(create(client, "a", dry=True)) == 0
    for name in "abc":
        assert throttle_ms(create(other, name)) == 0
    assert len(bench.topics.all()) == 3


def test_a_topic_of_many_partitions_is_answered_when_it_is_there(bench: Bench) -> None:
    client = bench.connect("other")
    topics = [
        {
            "name": name,
            "num_partitions": count,
            "replication_factor": 1,
            "assignments": (),
            "configs": (),
        }
        for name, count in (("large", 500), ("small", 1), ("bad", 0), ("larger", 600))
    ]
    request = client.request(
        CREATE, 7, topics=topics, timeout=timedelta(seconds=1), validate_only=False
    )
    client.feed(request + client.request(18, 0))
    answer, versions = client.answers()
    assert len(versions) > 100
    told = read_answer(CREATE, 7, answer).topics
    assert [(topic.error_code, topic.num_partitions) for topic in told] == [
        (0, 500),
        (0, 1),
        (37, -1),
        (0, 600),
    ]
    assert [topic.partitions for topic in bench.topics.all()] == [500, 600, 1]
    found = grow(client, "small", 300, version=3)
    assert found.results[0].error_code == 0
    assert bench.topics.get("small").partitions == 300

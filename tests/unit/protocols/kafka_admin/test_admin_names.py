"""Topic names as Kafka restricts them, and the topics of other doors that have others."""

from __future__ import annotations

import pytest
from admin_line import AdminLine

from pentalog.broker.port import TopicSpec
from pentalog.protocols.kafka.names import kafka_name_flaw

ODD = ("", "a/b", "..", "\0\n", "ü", "x" * 250)
ENDLESS = "x" * 32_768
NOT_ASKED = {
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "-", "_", "a" * 249])
def test_good(name: str) -> None:
    assert kafka_name_flaw(name) is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a b", "a/b", "ä", "a\n", "\u0661", "a" * 250, "a:b", "a\0"]
)
def test_bad(name: str) -> None:
    assert kafka_name_flaw(name)


@pytest.fixture
def odd(line: AdminLine) -> AdminLine:
    for name in ("plain", *ODD, ENDLESS):
        line.broker.topics.create(TopicSpec(name=name))
    return line


@pytest.mark.parametrize("version", range(1, 14))
def test_a_list_of_all_topics_has_names_of_kafka(odd: AdminLine, version: int) -> None:
    answer = odd.ask(3, version, topics=None, **NOT_ASKED)
    assert [topic.name for topic in answer.topics] == ["plain"]


@pytest.mark.parametrize("version", range(1, 14))
def test_who_names_a_topic_gets_it(odd: AdminLine, version: int) -> None:
    asked = [{"topic_id": None, "name": name} for name in ODD]
    answer = odd.ask(3, version, topics=asked, **NOT_ASKED)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        (name, 0) for name in ODD
    ]


def test_a_name_that_cannot_be_told_is_unknown_by_its_id(odd: AdminLine) -> None:
    topic_id = odd.broker.topics.get(ENDLESS).topic_id
    asked = [{"topic_id": topic_id, "name": None}]
    (topic,) = odd.ask(3, 12, topics=asked, **NOT_ASKED).topics
    assert topic.error_code.name == "unknown_topic_id"


def test_pages_of_topics_have_names_of_kafka(odd: AdminLine) -> None:
    page = {"response_partition_limit": 2000, "cursor": None}
    assert [topic.name for topic in odd.ask(75, 0, topics=(), **page).topics] == ["plain"]
    asked = [{"name": "a/b"}]
    assert [topic.error_code for topic in odd.ask(75, 0, topics=asked, **page).topics] == [0]


def test_administrators_find_all_that_a_text_can_name(odd: AdminLine) -> None:
    found = odd.ask(74, 1, resource_types=(2,)).config_resources
    assert sorted(each.resource_name for each in found) == sorted(("plain", *ODD))
    (directory,) = odd.ask(35, 4, topics=None).results
    assert sorted(topic.name for topic in directory.topics) == sorted(("plain", *ODD))

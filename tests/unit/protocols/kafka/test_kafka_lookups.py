"""Metadata, ListOffsets, ApiVersions, InitProducerId, OffsetForLeaderEpoch, in every version."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kafka_requests import produce, request
from kafka_world import World, answer_of, records

from pentalog.model.errors import StorageFailed
from pentalog.model.types import Identity
from pentalog.protocols.kafka.api import APIS


def metadata(version: int, names: list[str | UUID] | None, **fields: Any) -> bytes:
    topics = None
    if names is not None:
        topics = [
            {"topic_id": name, "name": None}
            if isinstance(name, UUID)
            else {"topic_id": None, "name": name}
            for name in names
        ]
    filled = {
        "topics": topics,
        "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    return request(3, version, {**filled, **fields})


def found(answer: Any) -> list[tuple[int, str | None, int]]:
    return [(int(topic.error_code), topic.name, len(topic.partitions)) for topic in answer.topics]


@pytest.mark.parametrize("version", range(14))
def test_metadata_names_the_broker_and_the_topics(version: int) -> None:
    made = World(node_id=3)
    topic_id = made.topics.add("orders", 2).topic_id
    answer = made.ask(3, version, metadata(version, ["orders"]))
    (broker,) = answer.brokers
    assert (broker.node_id, broker.host, broker.port) == (3, "host.example", 9092)
    assert found(answer) == [(0, "orders", 2)]
    (topic,) = answer.topics
    assert [one.partition_index for one in topic.partitions] == [0, 1]
    for one in topic.partitions:
        assert (one.error_code, one.leader_id) == (0, 3)
        assert (one.replica_nodes, one.isr_nodes) == ((3,), (3,))
        assert getattr(one, "leader_epoch", 0) == 0
    assert getattr(topic, "topic_id", topic_id) == topic_id
    assert getattr(answer, "controller_id", 3) == 3
    if version >= 2:
        assert answer.cluster_id == made.broker.cluster_id


@pytest.mark.parametrize("version", range(14))
def test_null_and_empty_lists(version: int) -> None:
    made = World()
    made.topics.add("a")
    made.topics.add("b")
    every = metadata(version, None if version else [])
    assert [name for _, name, _ in found(made.ask(3, version, every))] == ["a", "b"]
    if version:
        assert found(made.ask(3, version, metadata(version, []))) == []


@pytest.mark.parametrize("version", [0, 3, 4, 9, 13])
def test_missing_topics_are_created_where_allowed(version: int) -> None:
    made = World()
    asked = metadata(version, ["new", "bad/name", "..", ""])
    flawed = [(17, "bad/name", 0), (17, "..", 0), (17, "", 0)]
    # As Kafka has it: unknown where it is created, there for the one who asks again.
    assert found(made.ask(3, version, asked)) == [(3, "new", 0), *flawed]
    assert set(made.topics.known) == {"new"}
    assert found(made.ask(3, version, asked)) == [(0, "new", 1), *flawed]


@pytest.mark.parametrize("version", [4, 9, 13])
def test_creation_can_be_declined_by_either_side(version: int) -> None:
    for made, allowed in ((World(), False), (World(auto_create_topics=False), True)):
        asked = metadata(version, ["new"], allow_auto_topic_creation=allowed)
        assert found(made.ask(3, version, asked)) == [(3, "new", 0)]
        assert not made.topics.known


def test_a_creation_is_answered_once_it_is_on_disk() -> None:
    made = World()
    made.topics.unsettled = []
    made.feed(metadata(9, ["new"]))
    assert made.line.frames() == []
    made.topics.unsettled[0].fill(None)
    assert found(answer_of(3, 9, made.line.frames()[0])) == [(3, "new", 0)]
    made.feed(metadata(9, ["newer"]))
    made.topics.unsettled[1].refuse(StorageFailed("no disk"))
    assert found(answer_of(3, 9, made.line.frames()[1])) == [(56, "newer", 0)]


@pytest.mark.parametrize("version", [12, 13])
def test_topics_by_id(version: int) -> None:
    made = World()
    topic_id = made.topics.add("orders").topic_id
    answer = made.ask(3, version, metadata(version, [topic_id, UUID(int=77)]))
    assert found(answer) == [(0, "orders", 1), (100, None, 0)]
    assert answer.topics[1].topic_id == UUID(int=77)


@pytest.mark.parametrize("version", [10, 11, 12])
def test_neither_name_nor_id(version: int) -> None:
    made = World()
    asked = request(3, version, {
        "topics": [{"topic_id": None, "name": None}],
        "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    })  # fmt: skip
    assert found(made.ask(3, version, asked))[0][0] == 42


@pytest.mark.parametrize("version", [8, 10, 11, 13])
def test_operations_are_told_when_asked_for(version: int) -> None:
    made = World()
    made.topics.add("orders")
    plain = made.ask(3, version, metadata(version, None))
    assert plain.topics[0].topic_authorized_operations == -(1 << 31)
    asked = metadata(
        version,
        None,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    answer = made.ask(3, version, asked)
    assert answer.topics[0].topic_authorized_operations == 3576
    if version <= 10:
        assert answer.cluster_authorized_operations == 8096


def test_kept_answers_follow_the_topics() -> None:
    made = World()
    made.topics.add("a")
    first = made.ask(3, 12, metadata(12, None))
    assert made.ask(3, 12, metadata(12, None)) == first
    made.topics.add("b")
    assert len(made.ask(3, 12, metadata(12, None)).topics) == 2
    assert len(made.ask(3, 9, metadata(9, None)).topics) == 2


def list_offsets(version: int, index: int, when: int, *, epoch: int = -1, level: int = 0) -> bytes:
    partition = {"partition_index": index, "current_leader_epoch": epoch, "timestamp": when}
    fields = {
        "replica_id": -1,
        "isolation_level": level,
        "topics": [{"name": "orders", "partitions": [partition]}],
        "timeout": timedelta(seconds=1),
    }
    return request(2, version, fields)


def located(made: World, version: int, index: int, when: int, **how: int) -> tuple[int, int, int]:
    answer = made.ask(2, version, list_offsets(version, index, when, **how))
    (topic,) = answer.topics
    (one,) = topic.partitions
    assert (topic.name, one.partition_index) == ("orders", index)
    return int(one.error_code), one.offset, one.timestamp


@pytest.mark.parametrize("version", range(1, 12))
def test_offsets_by_edge_and_time(version: int) -> None:
    made = World()
    made.topics.add("orders", 2)
    made.feed(produce(9, [("orders", 0, records(5))], acks=0))
    assert located(made, version, 0, -1) == (0, 5, -1)
    assert located(made, version, 0, -2) == (0, 0, -1)
    assert located(made, version, 0, 1002) == (0, 2, 1002)
    assert located(made, version, 0, 0) == (0, 0, 1000)
    assert located(made, version, 0, 9999) == (0, -1, -1)
    assert located(made, version, 7, -1) == (3, -1, -1)
    assert located(made, version, 0, -3) == ((0, 4, 1004) if version >= 7 else (35, -1, -1))
    assert located(made, version, 1, -3) == ((0, -1, -1) if version >= 7 else (35, -1, -1))
    assert located(made, version, 0, -4) == ((0, 0, -1) if version >= 8 else (35, -1, -1))
    assert located(made, version, 0, -5) == ((0, -1, -1) if version >= 9 else (35, -1, -1))
    assert located(made, version, 0, -6) == ((0, -1, -1) if version >= 11 else (35, -1, -1))
    if version >= 4:
        assert located(made, version, 0, -1, epoch=0)[0] == 0
        assert located(made, version, 0, -1, epoch=1)[0] == 75


@pytest.mark.parametrize("version", range(5))
def test_api_versions_are_those_of_the_registry(version: int) -> None:
    made = World()
    software = {"client_software_name": "test-client", "client_software_version": "1.0"}
    answer = made.ask(18, version, request(18, version, software))
    assert answer.error_code == 0
    ranges = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert ranges.keys() == APIS.keys()
    assert ranges.pop(0) == (0, 13)
    for key, (lowest, highest) in ranges.items():
        assert (lowest, highest) == (APIS[key].version_min, APIS[key].version_max)


@pytest.mark.parametrize("name", ["", "-x", "bad name", "x" * 10 + "."])
def test_a_client_with_a_bad_name_is_refused(name: str) -> None:
    made = World()
    asked = request(18, 3, {"client_software_name": name, "client_software_version": "1"})
    assert made.ask(18, 3, asked).error_code == 42


def identity(version: int, name: str | None = None) -> bytes:
    timeout = timedelta(milliseconds=1)
    return request(22, version, {"transactional_id": name, "transaction_timeout": timeout})


@pytest.mark.parametrize("version", range(6))
def test_producers_get_an_identity(version: int) -> None:
    made = World()
    first = made.ask(22, version, identity(version))
    second = made.ask(22, version, identity(version))
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert first.producer_id != second.producer_id
    assert made.ask(22, version, identity(version, "")).error_code == 42


def test_an_identity_may_come_later() -> None:
    made = World()
    made.producers.held = []
    made.feed(identity(4) * 2)
    made.producers.held[1].refuse(StorageFailed("no disk"))
    assert made.line.frames() == []
    made.producers.held[0].fill(Identity(5, 0))
    first, second = (answer_of(22, 4, answer) for answer in made.line.frames())
    assert (first.error_code, first.producer_id) == (0, 5)
    assert (second.error_code, second.producer_id) == (56, -1)


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(
    ("index", "epoch", "current", "expected"),
    [
        (0, 0, -1, (0, 0, 5)),
        (0, 0, 0, (0, 0, 5)),
        (0, 1, -1, (0, -1, -1)),
        (0, 0, 1, (75, -1, -1)),
        (9, 0, -1, (3, -1, -1)),
    ],
)
def test_the_epoch_goes_on(
    version: int, index: int, epoch: int, current: int, expected: tuple[int, int, int]
) -> None:
    made = World()
    made.topics.add("orders")
    made.feed(produce(9, [("orders", 0, records(5))], acks=0))
    partition = {"partition": index, "current_leader_epoch": current, "leader_epoch": epoch}
    fields = {"replica_id": -1, "topics": [{"topic": "orders", "partitions": [partition]}]}
    answer = made.ask(23, version, request(23, version, fields))
    (one,) = answer.topics[0].partitions
    assert (int(one.error_code), one.leader_epoch, one.end_offset) == expected

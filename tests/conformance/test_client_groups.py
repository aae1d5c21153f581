"""Consumer groups with real clients: joining, leaving, dying, going on after a crash."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from group_members import KINDS, ConfluentMember, GroupMember

import brokers
from pentalog.testing.ports import reserve_port

pytestmark = pytest.mark.clients

PARTITIONS = 6
SETTINGS = {"group_initial_rebalance_delay_ms": "0", "group_session_timeout_ms_min": "1000"}
STRATEGIES: dict[str, dict[str, Any]] = {
    "range": {"partition.assignment.strategy": "range"},
    "roundrobin": {"partition.assignment.strategy": "roundrobin"},
    "cooperative-sticky": {"partition.assignment.strategy": "cooperative-sticky"},
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    started = brokers.start_pentalog(tmp_path_factory.mktemp("groups"), settings=SETTINGS)
    with brokers.stopping(started):
        yield started.address


def create(address: str, topic: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    return admin


def fill(address: str, topic: str, count: int, *, start: int = 0) -> None:
    producer = Producer({"bootstrap.servers": address})
    for number in range(start, start + count):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def until(condition: Callable[[], bool], *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within its time"
        time.sleep(0.05)


def shared(members: list[GroupMember]) -> bool:
    """Has every member a part, and every partition one member?"""
    parts = [member.assigned for member in members]
    return all(parts) and sorted(p for part in parts for p in part) == list(range(PARTITIONS))


def values(*members: GroupMember) -> list[int]:
    return sorted(int(value) for member in members for _, _, value in list(member.read))


def committed(address: str, group: str, topic: str) -> int:
    """The sum of a group's offsets in a topic."""
    admin = AdminClient({"bootstrap.servers": address})
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result(30)
    return sum(part.offset for part in found.topic_partitions if part.topic == topic)


@pytest.mark.parametrize("kind", KINDS)
def test_members_join_leave_and_go_on(running: str, topic: str, kind: str) -> None:
    create(running, topic)
    fill(running, topic, 60)
    group = f"group-{topic}"
    with ExitStack() as stack:
        first = KINDS[kind](running, group, topic)
        stack.callback(first.close)
        until(lambda: len(first.read) >= 60)
        assert values(first) == list(range(60))
        first.commit()
        with closing(KINDS[kind](running, group, topic)) as second:
            until(lambda: shared([first, second]))
            fill(running, topic, 60, start=60)
            until(lambda: len(first.read) + len(second.read) >= 120)
            assert values(first, second) == list(range(120)), "nothing twice, nothing missing"
            first.commit()
            second.commit()
        until(lambda: first.assigned == set(range(PARTITIONS)))
    assert committed(running, group, topic) == 120


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies(running: str, topic: str, strategy: str) -> None:
    create(running, topic)
    group = f"group-{topic}"
    members: list[GroupMember] = []
    with ExitStack() as stack:
        for count in (1, 2, 3):
            member = ConfluentMember(running, group, topic, **STRATEGIES[strategy])
            stack.callback(member.close)
            members.append(member)
            until(lambda: shared(members))
            assert len(members) == count
        fill(running, topic, 60)
        until(lambda: len(values(*members)) >= 60)
        assert values(*members) == list(range(60))
        admin = AdminClient({"bootstrap.servers": running})
        described = admin.describe_consumer_groups([group])[group].result(30)
        assert described.state.name == "STABLE"
        assert described.partition_assignor == strategy
        assert sorted(
            part.partition for m in described.members for part in m.assignment.topic_partitions
        ) == list(range(PARTITIONS))


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_dies(running: str, topic: str, kind: str) -> None:
    create(running, topic)
    group = f"group-{topic}"
    command = [sys.executable, str(Path(__file__).parent / "group_members.py")]
    with (
        closing(KINDS[kind](running, group, topic)) as survivor,
        subprocess.Popen(
            [*command, kind, running, group, topic],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        ) as victim,
    ):
        try:
            until(lambda: 0 < len(survivor.assigned) < PARTITIONS)
        finally:
            victim.kill()
        until(lambda: survivor.assigned == set(range(PARTITIONS)))
        fill(running, topic, 60)
        until(lambda: len(survivor.read) >= 60)
        assert values(survivor) == list(range(60))


@pytest.mark.crash
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_group_goes_on_after_the_broker_comes_back(tmp_path: Path, topic: str, end: str) -> None:
    port = reserve_port()
    started = brokers.start_pentalog(tmp_path, settings=SETTINGS, port=port)
    create(started.address, topic)
    group = f"group-{topic}"
    with ExitStack() as stack:
        members: list[GroupMember] = []
        for _ in range(2):
            # Longer than a client may take to connect again.
            patient = {"session.timeout.ms": 30_000}
            members.append(ConfluentMember(started.address, group, topic, **patient))
            stack.callback(members[-1].close)
        until(lambda: shared(members))
        fill(started.address, topic, 60)
        until(lambda: len(values(*members)) >= 60)
        for member in members:
            member.commit()
        ids = member_ids(started.address, group)
        started.stop() if end == "stop" else started.kill()
        started = brokers.start_pentalog(tmp_path, settings=SETTINGS, port=port)
        stack.enter_context(brokers.stopping(started))
        assert committed(started.address, group, topic) == 60
        fill(started.address, topic, 60, start=60)
        until(lambda: len(values(*members)) >= 120)
        assert values(*members) == list(range(120)), "nothing twice, nothing missing"
        assert member_ids(started.address, group) == ids, "nobody had to join again"
        for member in members:
            member.commit()
        assert committed(started.address, group, topic) == 120


def member_ids(address: str, group: str) -> set[str]:
    admin = AdminClient({"bootstrap.servers": address})
    described = admin.describe_consumer_groups([group])[group].result(30)
    return {member.member_id for member in described.members}


def test_a_static_member_comes_back_to_its_part(running: str, topic: str) -> None:
    create(running, topic)
    group = f"group-{topic}"

    def member(name: str) -> ConfluentMember:
        return ConfluentMember(running, group, topic, **{"group.instance.id": name})

    with closing(member("one")) as first:
        second = member("two")
        until(lambda: shared([first, second]))
        parts = first.assigned, second.assigned
        second.close()
        with closing(member("two")) as again:
            until(lambda: again.assigned == parts[1])
            assert first.assigned == parts[0]
            with closing(member("two")) as twin:
                until(lambda: twin.assigned == parts[1])
                until(lambda: not again.assigned)


def test_offsets_are_listed_changed_and_deleted(running: str, topic: str) -> None:
    admin = create(running, topic)
    group = f"group-{topic}"
    parts = [TopicPartition(topic, index, 10 + index) for index in range(PARTITIONS)]
    changed = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, parts)])
    changed[group].result(30)
    assert committed(running, group, topic) == sum(range(10, 10 + PARTITIONS))
    listed = {g.group_id: g for g in admin.list_consumer_groups().result(30).valid}
    assert listed[group].state.name == "EMPTY"
    admin.delete_consumer_groups([group])[group].result(30)
    assert group not in {g.group_id for g in admin.list_consumer_groups().result(30).valid}
    with pytest.raises(KafkaException, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups([group])[group].result(30)


def test_a_group_with_members_is_not_deleted(running: str, topic: str) -> None:
    admin = create(running, topic)
    group = f"group-{topic}"
    with closing(ConfluentMember(running, group, topic)) as member:
        until(lambda: len(member.assigned) == PARTITIONS)
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups([group])[group].result(30)


def test_a_deleted_topic_has_no_offsets(running: str, topic: str) -> None:
    admin = create(running, topic)
    group = f"group-{topic}"
    consumer = Consumer({"bootstrap.servers": running, "group.id": group})
    with closing(consumer):
        consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        assert committed(running, group, topic) == 5
        admin.delete_topics([topic])[topic].result(30)
        create(running, topic)
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=30)
        assert found.offset < 0


def test_a_fresh_broker_has_no_groups_and_no_topics(tmp_path: Path) -> None:
    with brokers.stopping(brokers.start_pentalog(tmp_path)) as started:
        admin = AdminClient({"bootstrap.servers": started.address})
        assert admin.list_consumer_groups().result(30).valid == []
        assert admin.list_topics(timeout=30).topics == {}

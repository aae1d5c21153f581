"""Real consumers in groups that the broker plans: several members, patterns, deaths, both kinds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import brokers
from pentalog.testing.ports import reserve_port

pytestmark = pytest.mark.clients

PATIENCE_S = 40
SETTINGS = {
    "consumer_heartbeat_interval_ms": "200",
    "consumer_session_timeout_ms": "3000",
    "group_session_timeout_ms_min": "1000",
    "group_initial_rebalance_delay_ms": "0",
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that notices dead members soon."""
    started = brokers.start_pentalog(tmp_path_factory.mktemp("quick"), settings=SETTINGS)
    with brokers.stopping(started):
        yield started.address
        assert started.process.poll() is None, f"the broker ended; see {started.log}"


def member(address: str, group: str, **more: Any) -> Consumer:
    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "group.id": group,
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": 1000,
    }
    settings.update({name.replace("_", "."): value for name, value in more.items()})
    return Consumer(settings)


def classic(address: str, group: str, assignor: str = "cooperative-sticky") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "partition.assignment.strategy": assignor,
            "session.timeout.ms": 3000,
            "heartbeat.interval.ms": 200,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )


def create(address: str, topic: str, partitions: int = 6) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        made.result(PATIENCE_S)


def produce(address: str, topic: str, numbers: range, partitions: int = 6) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5})
    for number in numbers:
        producer.produce(topic, str(number).encode(), partition=number % partitions)
    assert producer.flush(PATIENCE_S) == 0


def places(consumer: Consumer) -> list[tuple[str, int]]:
    return sorted((at.topic, at.partition) for at in consumer.assignment())


def poll(*consumers: Consumer, until: Callable[[], bool]) -> list[int]:
    """Serve all consumers until something is so; the numbers they got meanwhile."""
    got: list[int] = []
    end = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < end, [places(consumer) for consumer in consumers]
        for consumer in consumers:
            record = consumer.poll(0.05)
            if record is None:
                continue
            assert record.error() is None, record.error()
            got.append(int(record.value()))
    return got


def read(count: int, *consumers: Consumer) -> list[int]:
    """Exactly so many records, and no more for a while."""
    got: list[int] = []
    end = time.monotonic() + PATIENCE_S
    quiet_at = end
    while time.monotonic() < min(end, quiet_at):
        for consumer in consumers:
            record = consumer.poll(0.05)
            if record is not None:
                assert record.error() is None, record.error()
                got.append(int(record.value()))
                if len(got) == count:
                    quiet_at = time.monotonic() + 0.5
    return sorted(got)


def shared(*consumers: Consumer, count: int = 6) -> Callable[[], bool]:
    """Everything is read, by one each, in fair shares."""

    def so() -> bool:
        held = [places(consumer) for consumer in consumers]
        everything = [place for share in held for place in share]
        sizes = [len(share) for share in held]
        return len(set(everything)) == len(everything) == count and max(sizes) - min(sizes) <= 1

    return so


def test_members_share_commit_and_go_on(quick: str, topic: str) -> None:
    create(quick, topic)
    produce(quick, topic, range(60))
    with closing(member(quick, topic)) as first:
        first.subscribe([topic])
        assert read(60, first) == [*range(60)]
        first.commit(asynchronous=False)
        with closing(member(quick, topic)) as second, closing(member(quick, topic)) as third:
            second.subscribe([topic])
            third.subscribe([topic])
            poll(first, second, third, until=shared(first, second, third))
            produce(quick, topic, range(60, 120))
            assert read(60, first, second, third) == [*range(60, 120)]
            for consumer in (first, second, third):
                consumer.commit(asynchronous=False)
        poll(first, until=shared(first))
    with closing(member(quick, topic)) as later:
        later.subscribe([topic])
        produce(quick, topic, range(120, 126))
        assert read(6, later) == [*range(120, 126)]


def test_a_pattern_follows_new_topics(quick: str, topic: str) -> None:
    create(quick, f"{topic}-a", 2)
    create(quick, f"other-{topic}", 2)
    with closing(member(quick, topic)) as reader:
        reader.subscribe([f"^{topic}-.*"])
        poll(reader, until=lambda: places(reader) == [(f"{topic}-a", 0), (f"{topic}-a", 1)])
        create(quick, f"{topic}-b", 1)
        poll(reader, until=lambda: len(places(reader)) == 3)
        produce(quick, f"{topic}-b", range(5), 1)
        assert read(5, reader) == [*range(5)]


def poll_for_error(consumer: Consumer) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        record = consumer.poll(0.2)
        if record is not None and record.error():
            raise KafkaException(record.error())


def test_a_pattern_that_is_none_is_refused(quick: str, topic: str) -> None:
    with closing(member(quick, topic)) as reader:
        # The client checks patterns too, but lets this one pass.
        reader.subscribe(["^a**"])
        with pytest.raises(KafkaException, match="regular expression is not valid"):
            poll_for_error(reader)


def test_a_static_member_comes_back_to_its_partitions(quick: str, topic: str) -> None:
    create(quick, topic)
    with closing(member(quick, topic)) as other:
        other.subscribe([topic])
        static = member(quick, topic, group_instance_id="one")
        static.subscribe([topic])
        poll(other, static, until=shared(other, static))
        had, theirs = places(static), places(other)
        static.close()
        with closing(member(quick, topic, group_instance_id="one")) as back:
            back.subscribe([topic])
            poll(other, back, until=lambda: places(back) == had)
            assert places(other) == theirs


def _read_for_ever(address: str, group: str, topic: str) -> None:
    consumer = member(address, group)
    consumer.subscribe([topic])
    while True:
        consumer.poll(0.1)


def test_what_a_dead_member_had_goes_to_the_others(quick: str, topic: str) -> None:
    create(quick, topic)
    spawning = multiprocessing.get_context("spawn")
    doomed = spawning.Process(target=_read_for_ever, args=(quick, topic, topic), daemon=True)
    with closing(member(quick, topic)) as survivor:
        survivor.subscribe([topic])
        poll(survivor, until=shared(survivor))
        doomed.start()
        poll(survivor, until=lambda: len(places(survivor)) == 3)
        assert doomed.pid is not None
        os.kill(doomed.pid, signal.SIGKILL)
        doomed.join()
        poll(survivor, until=shared(survivor))
        produce(quick, topic, range(12))
        assert read(12, survivor) == [*range(12)]


def test_the_assignor_can_be_chosen(quick: str, topic: str) -> None:
    create(quick, f"{topic}-x", 4)
    create(quick, f"{topic}-y", 4)
    both = [f"{topic}-x", f"{topic}-y"]
    with ExitStack() as stack:
        members = [
            stack.enter_context(closing(member(quick, topic, group_remote_assignor="range")))
            for _ in range(2)
        ]
        for consumer in members:
            consumer.subscribe(both)
        poll(*members, until=shared(*members, count=8))
        for consumer in members:
            indexes = {name: [i for at, i in places(consumer) if at == name] for name in both}
            assert indexes[both[0]] == indexes[both[1]]
            assert indexes[both[0]] in ([0, 1], [2, 3])


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_a_group_changes_its_kind_and_back(quick: str, topic: str, assignor: str) -> None:
    create(quick, topic)
    produce(quick, topic, range(30))
    admin = AdminClient({"bootstrap.servers": quick})

    def kind() -> str:
        described = admin.describe_consumer_groups([topic])[topic].result(PATIENCE_S)
        return str(described.type).rpartition(".")[2]

    with ExitStack() as stack:
        older = [stack.enter_context(closing(classic(quick, topic, assignor))) for _ in range(2)]
        for consumer in older:
            consumer.subscribe([topic])
        poll(*older, until=shared(*older))
        assert kind() == "CLASSIC"
        newer = member(quick, topic)
        newer.subscribe([topic])
        poll(*older, newer, until=shared(*older, newer))
        assert kind() == "CONSUMER"
        for consumer in (*older, newer):
            held = [TopicPartition(topic, index, 5) for _, index in places(consumer)]
            consumer.commit(offsets=held, asynchronous=False)
        newer.close()
        poll(*older, until=shared(*older))
        assert kind() == "CLASSIC"
        for consumer in older:
            for at in consumer.committed(consumer.assignment(), timeout=PATIENCE_S):
                assert at.offset == 5


def test_members_go_on_after_the_broker_was_killed(tmp_path: Path, topic: str) -> None:
    port = reserve_port()
    started = brokers.start_pentalog(tmp_path / "killed", settings=SETTINGS, port=port)
    with ExitStack() as stack:
        create(started.address, topic)
        members = [stack.enter_context(closing(member(started.address, topic))) for _ in range(2)]
        for consumer in members:
            consumer.subscribe([topic])
        poll(*members, until=shared(*members))
        produce(started.address, topic, range(12))
        assert read(12, *members) == [*range(12)]
        held = [places(consumer) for consumer in members]
        for consumer in members:
            consumer.commit(asynchronous=False)
        started.process.kill()
        started.process.communicate()
        again = brokers.start_pentalog(tmp_path / "killed", settings=SETTINGS, port=port)
        stack.enter_context(brokers.stopping(again))
        produce(again.address, topic, range(12, 24))
        got: list[int] = []
        end = time.monotonic() + PATIENCE_S
        while len(got) < 12 and time.monotonic() < end:
            for consumer in members:
                record = consumer.poll(0.05)
                if record is not None and record.error() is None:
                    got.append(int(record.value()))
        assert sorted(got) == [*range(12, 24)]
        assert [places(consumer) for consumer in members] == held
        for consumer in members:
            consumer.close()

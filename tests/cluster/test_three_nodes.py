"""kill -9 of gateways and of Kafka's nodes in turn, while every door is written to and read."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from fleet_member import FleetMember
from loads import DOORS, Load
from members import CursusMember, KafkaMember, wait_until_settled
from three_nodes import Trio
from witnesses import (
    CursusWriting,
    FluvioReader,
    KafkaWriting,
    Reader,
    RustLogReader,
    Subscriber,
)

import apache_kafka
from pentalog.clients.blipmq import BlipmqClient

pytestmark = [pytest.mark.trio, pytest.mark.timeout(1800)]

PORTS = ("rustlog", "blipmq", "cursus", "fluvio-spu", "fluvio-sc")
PARTITIONS = 6
"""Of the topic that groups share."""
ROUNDS = 3
"""In each of them every gateway and every node dies once."""


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    try:
        started = Trio(tmp_path_factory.mktemp("trio"))
    except apache_kafka.JarsMissing as why:
        pytest.skip(str(why))
    yield started
    started.stop()


@pytest.fixture
def fleets(tmp_path: Path) -> Iterator[Callable[[str], FleetMember]]:
    """Starts gateways with all doors; they are stopped after the test."""
    started: list[FleetMember] = []

    def start(cluster: str) -> FleetMember:
        started.append(FleetMember(tmp_path / f"{len(started)}", cluster, PORTS))
        return started[-1]

    yield start
    for member in started:
        assert member.stop() == 0


def create(trio: Trio, topics: Mapping[str, int]) -> None:
    admin = AdminClient({"bootstrap.servers": trio.address})
    # Fluvio's records come with times of 1970 here, which nobody shall take for old.
    forever = {"retention.ms": "-1"}
    wanted = [NewTopic(name, partitions, 3, config=forever) for name, partitions in topics.items()]
    for made in admin.create_topics(wanted).values():
        made.result(60)


def numbers(trio: Trio, topic: str) -> list[int]:
    """Everything the topic holds that is not aborted, in its order."""
    settings = {"bootstrap.servers": trio.address, "group.id": uuid.uuid4().hex}
    consumer = Consumer(settings | {"enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []
    seen_s = time.monotonic()
    while True:
        assert time.monotonic() < seen_s + 120, (topic, len(found))
        for message in consumer.consume(1000, 0.5):
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                consumer.close()
                return found
            found.append(int(message.value()))
            seen_s = time.monotonic()


def trouble(trio: Trio, fleet: list[FleetMember], loads: list[Load], chance: random.Random) -> None:
    victims: list[tuple[str, int]] = [("gateway", 0), ("gateway", 1)]
    victims += [("node", number) for number in (1, 2, 3)]
    chance.shuffle(victims)
    for kind, number in victims:
        for load in loads:
            load.wait_for(chance.randrange(20, 400))
        if kind == "gateway":
            fleet[number].kill()
            time.sleep(chance.random())
            fleet[number].start()
        else:
            trio.kill(number)
            time.sleep(5 * chance.random())
            trio.start(number)
            trio.wait_until_whole()
    for load in loads:
        load.wait_for(200)


def test_nothing_acknowledged_is_lost(trio: Trio, fleets: Callable[[str], FleetMember]) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    tail = uuid.uuid4().hex[:8]
    topics = {name: f"{name}-{tail}" for name in DOORS}
    shared = f"shared-{tail}"
    transactions = [f"transactions-{name}-{tail}" for name in ("kafka", "cursus")]
    create(trio, {**dict.fromkeys([*topics.values(), *transactions], 1), shared: PARTITIONS})
    fleet = [fleets(trio.address) for _ in range(2)]
    at = {name: [each.addresses[name] for each in fleet] for name in PORTS} | {
        "kafka": [trio.address]
    }
    with BlipmqClient(at["blipmq"][0]) as client:
        subscription = client.subscribe(topics["blipmq"])
    loads = [Load(name, topics[name], at[name]) for name in DOORS]
    members = {
        "cursus": [
            CursusMember(name, f"cursus-{tail}", shared, at["cursus"]) for name in ("one", "two")
        ],
        "kafka": [KafkaMember(f"kafka-{tail}", shared, trio.address) for _ in range(2)],
    }
    subscriber = Subscriber(subscription, topics["blipmq"], at["blipmq"])
    readers: list[Reader] = [
        RustLogReader(f"rustlog-{tail}", topics["rustlog"], at["rustlog"]),
        FluvioReader(f"fluvio-{tail}", topics["fluvio-spu"], at["fluvio-spu"]),
    ]
    writings = [
        KafkaWriting(transactions[0], trio.address),
        CursusWriting(transactions[1], at["cursus"]),
    ]
    try:
        for _ in range(ROUNDS):
            trouble(trio, fleet, loads, chance)
            for group in members.values():
                wait_until_settled(group, PARTITIONS, deadline_s=180)
        for load in loads:
            load.finish()
        there = {load.topic: numbers(trio, load.topic) for load in loads}
        wait_until_read(there, subscriber, readers)
    finally:
        for each in (*loads, *members["cursus"], *members["kafka"], *writings):
            each.finish()
        for each in (subscriber, *readers):
            each.finish()
    for load in loads:
        found = there[load.topic]
        print(
            f"{load.name}: {load.acknowledged} acknowledged, {len(found)} there, "
            f"{load.troubles} times sent again"
        )
        assert set(found) == set(range(load.acknowledged)), load.name
        if load.exactly_once:
            assert found == list(range(load.acknowledged)), load.name
        else:
            assert list(dict.fromkeys(found)) == list(range(load.acknowledged)), load.name
    for reader in readers:
        print(f"{reader.group}: {reader.committed} committed, {reader.troubles} troubles")
    print(f"subscriber: {subscriber.again} again, {subscriber.troubles} {subscriber.refused}")
    for writing in writings:
        found = numbers(trio, writing.topic)
        print(f"{writing.topic}: {len(found)} committed, {len(writing.unsure)} unsure")
        assert len(found) > 30
        writing.check(found)
    with BlipmqClient(fleet[1].addresses["blipmq"]) as client:
        assert client.poll(subscription, 100) == [], "all of them were acknowledged"


def wait_until_read(
    there: Mapping[str, list[int]], subscriber: Subscriber, readers: list[Reader]
) -> None:
    """Until everything there is was delivered, and was read in its order and committed."""
    deadline = time.monotonic() + 180
    while subscriber.delivered != set(there[subscriber.topic]):
        assert time.monotonic() < deadline, (subscriber.topic, len(subscriber.delivered))
        time.sleep(0.2)
    for reader in readers:
        wanted = there[reader.topic]
        while reader.committed < len(wanted):
            assert time.monotonic() < deadline, (reader.topic, reader.committed, len(wanted))
            time.sleep(0.2)
        assert reader.values == wanted, reader.topic

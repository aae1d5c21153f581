"""kill -9 of gateways and of Kafka's nodes in turn, while somebody writes through every door."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from fleet_member import FleetMember
from loads import DOORS, Load
from members import CursusMember, KafkaMember, wait_until_settled
from three_nodes import Trio

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
    """Everything the topic holds, in its order."""
    consumer = Consumer({"bootstrap.servers": trio.address, "group.id": uuid.uuid4().hex})
    at = TopicPartition(topic, 0, 0)
    _, end = consumer.get_watermark_offsets(at, 30)
    consumer.assign([at])
    found: list[int] = []
    seen_s = time.monotonic()
    while consumer.position([at])[0].offset < end and end:
        assert time.monotonic() < seen_s + 120, (topic, len(found), end, consumer.position([at]))
        for message in consumer.consume(1000, 0.5):
            assert message.error() is None, message.error()
            found.append(int(message.value()))
            seen_s = time.monotonic()
    consumer.close()
    return found


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
    create(trio, {**dict.fromkeys(topics.values(), 1), shared: PARTITIONS})
    fleet = [fleets(trio.address) for _ in range(2)]
    with BlipmqClient(fleet[0].addresses["blipmq"]) as subscriber:
        subscription = subscriber.subscribe(topics["blipmq"])
    at = [member.addresses["cursus"] for member in fleet]
    loads = []
    for name in DOORS:
        addresses = [trio.address] if name == "kafka" else [each.addresses[name] for each in fleet]
        loads.append(Load(name, topics[name], addresses))
    members = {
        "cursus": [CursusMember(name, f"cursus-{tail}", shared, at) for name in ("one", "two")],
        "kafka": [KafkaMember(f"kafka-{tail}", shared, trio.address) for _ in range(2)],
    }
    try:
        for _ in range(ROUNDS):
            trouble(trio, fleet, loads, chance)
            for group in members.values():
                wait_until_settled(group, PARTITIONS, deadline_s=180)
    finally:
        for each in (*loads, *members["cursus"], *members["kafka"]):
            each.finish()
    for load in loads:
        found = numbers(trio, load.topic)
        print(
            f"{load.name}: {load.acknowledged} acknowledged, {len(found)} there, "
            f"{load.troubles} times sent again"
        )
        assert set(found) == set(range(load.acknowledged)), load.name
        if load.exactly_once:
            assert found == list(range(load.acknowledged)), load.name
        else:
            assert list(dict.fromkeys(found)) == list(range(load.acknowledged)), load.name
    delivered = everything_delivered(fleet[1], subscription, loads)
    assert delivered == set(range(next(o.acknowledged for o in loads if o.name == "blipmq")))


def everything_delivered(gateway: FleetMember, subscription: int, loads: list[Load]) -> set[int]:
    """What a subscription of the first gateway gives at the second, after all that."""
    wanted = next(load.acknowledged for load in loads if load.name == "blipmq")
    found: set[int] = set()
    deadline = time.monotonic() + 180
    with BlipmqClient(gateway.addresses["blipmq"]) as client:
        while len(found) < wanted and time.monotonic() < deadline:
            deliveries = client.poll(subscription, 500)
            found.update(int(delivery.message) for delivery in deliveries)
            if deliveries:
                client.acknowledge(subscription, *(delivery.tag for delivery in deliveries))
    return found

"""BlipMQ in front of Apache Kafka: two gateways, one of which keeps the subscriptions, and dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fleet_member import FleetMember
from kafka_node import Node

from pentalog.clients.blipmq import BlipmqClient, BlipmqError
from pentalog.clients.kafka import Cluster
from pentalog.clients.kafka.groups import described
from pentalog.cluster.agreement import STATE_TOPIC
from pentalog.cluster.council import GROUP
from pentalog.model.types import Partition

pytestmark = pytest.mark.java

KEY = "dev-key"
PATIENCE_S = 60


@pytest.fixture
def pair(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[FleetMember]]:
    monkeypatch.setenv("PENTALOG_TOPIC_DEFAULTS", "subscription.lease.ms=600000")
    members = [FleetMember(tmp_path / name, node.address, ["blipmq"]) for name in ("one", "two")]
    yield members
    for member in members:
        assert member.stop() == 0


def client_of(member: FleetMember) -> BlipmqClient:
    return BlipmqClient(member.addresses["blipmq"], key=KEY)


def until(what: str, attempt: Callable[[], bool]) -> None:
    """Try again while nobody owns the state, or the answer is no."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if attempt():
                return
        except (BlipmqError, OSError):
            pass
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)


def subscribed(member: FleetMember, topic: str) -> int:
    number = 0

    def attempt() -> bool:
        nonlocal number
        with client_of(member) as client:
            number = client.subscribe(topic)
        return True

    until("a subscription", attempt)
    return number


def shares(cluster: Cluster) -> list[list[Partition]]:
    """What Kafka says each gateway has."""
    found = described(cluster, GROUP)
    return [] if found is None else [list(member.partitions) for member in found.members]


def test_a_subscription_outlives_its_keeper(
    node: Node, pair: list[FleetMember], topic: str
) -> None:
    """Both are killed in turn, so whoever keeps the subscription is, once or twice."""
    one, two = pair
    number = subscribed(one, topic)
    published = {b"a": 1, b"b": 2, b"c": 3}
    with client_of(one) as first, client_of(two) as second:
        first.publish(topic, b"a", b"b")
        second.publish(topic, b"c")
        found = {each.message: each.tag for each in second.poll(number, 10)}
        assert found == published
        assert first.poll(number, 10) == [], "they are on lease"
    with Cluster(node.address) as cluster:
        one_owner = [[], [Partition(STATE_TOPIC, 0)]]
        until("two members", lambda: sorted(shares(cluster)) == one_owner)
    for victim, heir in ((one, two), (two, one)):
        victim.kill()
        published[b"without %d" % len(published)] = len(published) + 1
        with client_of(heir) as client:
            client.publish(topic, *list(published)[-1:])
        seen: dict[bytes, int] = {}

        def delivered(heir: FleetMember = heir, seen: dict[bytes, int] = seen) -> bool:
            with client_of(heir) as client:
                seen.update({each.message: each.tag for each in client.poll(number, 10)})
            return set(seen) >= set(list(published)[-1:])

        until("deliveries by whoever is left", delivered)
        assert seen.items() <= published.items(), "tags are kept"
        victim.start()
    with client_of(one) as client:
        unknown = client.acknowledge(number, *published.values())
        assert unknown == [], "what was not acknowledged is on lease again"
    with client_of(two) as client:
        assert client.poll(number, 10) == []
    assert subscribed(two, topic) > number


def test_a_gateway_that_is_stopped_hands_over(
    node: Node, pair: list[FleetMember], topic: str
) -> None:
    """Nobody waits for its session to end, nor is refused anything meanwhile."""
    number = subscribed(pair[0], topic)
    with Cluster(node.address) as cluster:
        for stopped, heir in (pair, pair[::-1]):
            until("two members", lambda: len(shares(cluster)) == 2)
            with client_of(heir) as client:
                client.publish(topic, stopped.addresses["blipmq"].encode())
                assert stopped.stop() == 0
                assert len(shares(cluster)) == 1, "it has left"
                (delivery,) = client.poll(number, 1)
                assert delivery.message == stopped.addresses["blipmq"].encode()
                assert client.acknowledge(number, delivery.tag) == []
            stopped.start()

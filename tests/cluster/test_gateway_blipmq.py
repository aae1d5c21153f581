"""BlipMQ in front of Apache Kafka: two gateways, one of which keeps the subscriptions, and dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fleet_member import FleetMember

from conftest import Node
from pentalog.clients.blipmq import BlipmqClient, BlipmqError
from pentalog.clients.kafka import Cluster
from pentalog.cluster.agreement import STATE_TOPIC

pytestmark = pytest.mark.java

KEY = "dev-key"
PATIENCE_S = 60


@pytest.fixture
def pair(node: Node, tmp_path: Path) -> Iterator[list[FleetMember]]:
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


def test_a_subscription_outlives_its_keeper(
    node: Node, pair: list[FleetMember], topic: str
) -> None:
    one, two = pair
    number = subscribed(one, topic)
    seen: dict[bytes, int] = {}

    def poll(member: FleetMember, *, acknowledges: bool) -> None:
        with client_of(member) as client:
            for delivery in client.poll(number, 10):
                assert seen.setdefault(delivery.message, delivery.tag) == delivery.tag
                if acknowledges:
                    client.acknowledge(number, delivery.tag)

    with client_of(one) as first, client_of(two) as second:
        first.publish(topic, b"a", b"b")
        second.publish(topic, b"c")
    for member in pair:
        poll(member, acknowledges=False)
    assert seen == {b"a": 1, b"b": 2, b"c": 3}
    with Cluster(node.address) as cluster:
        assert STATE_TOPIC in cluster.topics()
    for victim, heir in ((one, two), (two, one)):
        victim.kill()
        again: set[bytes] = set()

        def delivered(heir: FleetMember = heir, again: set[bytes] = again) -> bool:
            with client_of(heir) as client:
                again |= {delivery.message for delivery in client.poll(number, 10)}
            return bool(again)

        # Whoever dies, what was not acknowledged is delivered again, or was set aside.
        with client_of(heir) as client:
            client.publish(topic, b"for " + heir.addresses["blipmq"].encode())
        until("deliveries by whoever is left", delivered)
        victim.start()

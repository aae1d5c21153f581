"""Attacks on the BlipMQ door."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hostile.blipmq_wire import BlipmqClient, ack, hello, poll, publish, subscribe
from tests.hostile.hostile_world import HostileWorld
from tests.hostile.kafka_topics import create_topic

from pentalog.protocols.blipmq.frames import FrameType


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HostileWorld]:
    with HostileWorld(tmp_path / "data", "blipmq") as world:
        yield world


def connect(world: HostileWorld, key: str = "dev-key", source: str = "") -> BlipmqClient:
    return BlipmqClient(world.connect("blipmq", source), key)


def test_subscriptions_to_many_partitions(world: HostileWorld) -> None:
    """Each has a row for each partition."""
    create_topic(world, "wide", 500)

    def attack() -> None:
        with connect(world) as client:
            found = client.fence(subscribe("wide") * 20)
            assert {kind for kind, _, _ in found} == {FrameType.ACK}

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=10, memory_mib=64)


def test_one_client_does_not_take_all_subscriptions(tmp_path: Path) -> None:
    data, arguments = tmp_path / "data", ("--subscriptions-max", "100")
    with HostileWorld(data, "blipmq", arguments=arguments) as world:
        with connect(world) as greedy:
            kinds = [kind for kind, _, _ in greedy.fence(subscribe("demo") * 200)]
        assert (kinds.count(FrameType.ACK), kinds.count(FrameType.NACK)) == (50, 150)
        with connect(world, source="127.0.0.2") as modest:
            number = modest.subscribe("demo")
            modest.fence(publish("demo", b"served"))
            ((kind, _, payload),) = modest.fence(poll(number))
            assert (kind, payload[-6:]) == (FrameType.PUBLISH, b"served")


def test_one_client_that_polls_and_does_not_read(world: HostileWorld) -> None:
    with connect(world) as client:
        number = client.subscribe("demo")
        client.fence(b"".join(publish("demo", bytes(10_000)) for _ in range(2_000)))

        def attack() -> None:
            with connect(world) as slow, contextlib.suppress(TimeoutError):
                slow.socket.settimeout(2)
                slow.socket.sendall(poll(number) * 200_000)

        cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=10, memory_mib=96)


def test_leases_of_many_subscriptions_end_together(world: HostileWorld) -> None:
    """Every other delivery is acknowledged, so that what is left lies in pieces."""

    def attack() -> None:
        with connect(world) as client:
            numbers = [client.subscribe("demo") for _ in range(10)]
            client.fence(b"".join(publish("demo", b"x") for _ in range(4_000)))
            for number in numbers:
                client.fence(poll(number) * 4_000)
                client.fence(b"".join(ack(number, tag) for tag in range(1, 4_000, 2)))
            for number in numbers:
                client.fence(poll(number) * 4_000)

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=20, memory_mib=96)


def test_two_connections_on_one_subscription(world: HostileWorld) -> None:
    with connect(world) as one, connect(world) as two:
        number = one.subscribe("demo", qos=0)
        one.fence(b"".join(publish("demo", b"%d" % each, qos=0) for each in range(500)))
        seen: list[bytes] = []
        for client in (one, two) * 30:
            seen += [payload for _, _, payload in client.fence(poll(number) * 10)]
        assert len(seen) == len(set(seen)) == 500


def test_a_storm_of_connections_leaves_nothing(world: HostileWorld) -> None:
    def attack() -> None:
        for _ in range(10):
            with contextlib.ExitStack() as stack:
                for _ in range(50):
                    client = stack.enter_context(connect(world, key=""))
                    client.socket.sendall(hello() + b"\0\xff\xff\xff\3" + bytes(5_000))

    attack()
    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=15, memory_mib=32)

"""Attacks on the RustLog door, in both dialects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hostile.hostile_world import HostileWorld
from tests.hostile.rustlog_wire import PING, RustLogClient, framed, numbers, packed, produce, text


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HostileWorld]:
    with HostileWorld(tmp_path / "data", "rustlog") as world:
        with connect(world) as client:
            client.ask(packed(0x05, "demo", tail=numbers(4)))
        yield world


def connect(world: HostileWorld) -> RustLogClient:
    return RustLogClient(world.connect("rustlog"))


def test_millions_of_records_that_are_too_many(world: HostileWorld) -> None:
    """JSON allows 1,000 records in one request."""
    bomb = framed(
        b'{"type":"Produce","topic":"demo","partition":0,"records":[""' + b',""' * 3_000_000 + b"]}"
    )

    def attack() -> None:
        with connect(world) as client:
            for _ in range(5):
                assert b"at most 1000" in client.ask(bomb)
            assert client.ask(PING) == b"\xff"

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=4, memory_mib=96)


def test_refusals_that_list_topics(world: HostileWorld) -> None:
    """A short request for what is not there is answered with a thousand names."""
    with connect(world) as client:
        for number in range(500):
            client.socket.sendall(packed(0x05, f"{number:0200d}", tail=numbers(1)))
        for _ in range(500):
            client.receive()
    asked = text(type="DescribeTopic", topic="absent") * 200

    def attack() -> None:
        with connect(world) as client:
            client.socket.sendall(asked)
            for _ in range(200):
                client.receive()

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=10, memory_mib=64)


def test_a_reader_that_does_not_read(world: HostileWorld) -> None:
    with connect(world) as client:
        for _ in range(10):
            client.ask(produce("demo", 0, [bytes(900_000)]))
    fetch = packed(0x02, "", "demo", tail=numbers(0, 0, 10 << 20, wide=1))

    def attack() -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(5):
                client = stack.enter_context(connect(world))
                client.socket.sendall(fetch * 300)

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=20, memory_mib=192)


def test_metrics_asked_for_again_and_again(world: HostileWorld) -> None:
    with connect(world) as client:
        for number in range(2_000):
            tail = numbers(number % 4, number, wide=1)
            client.socket.sendall(packed(0x03, f"group-{number}", "demo", tail=tail))
        for _ in range(2_000):
            client.receive()

    def attack() -> None:
        with connect(world) as client:
            client.socket.sendall(packed(0x09) * 30)
            for _ in range(30):
                client.receive()

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=20, memory_mib=64)

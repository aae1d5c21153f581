"""Attacks on the two ports of the Fluvio door."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hostile.fluvio_wire import (
    CREATE,
    FETCH,
    LIST,
    PRODUCE,
    SC_VERSION,
    SPU_VERSION,
    STREAM_FETCH,
    WATCH,
    FluvioClient,
    create_topic,
    list_objects,
    produce,
    stream_fetch,
    their_batch,
    watch,
)
from tests.hostile.hostile_world import HostileWorld

from pentalog.protocols.fluvio.codec import Writer

TOO_LARGE = 10


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HostileWorld]:
    with HostileWorld(tmp_path / "data", "fluvio-sc", "fluvio-spu") as world:
        with controller(world) as client:
            client.ask(CREATE, create_topic("demo"))
        yield world


def controller(world: HostileWorld) -> FluvioClient:
    return FluvioClient(world.connect("fluvio-sc"), SC_VERSION)


def reader(world: HostileWorld) -> FluvioClient:
    return FluvioClient(world.connect("fluvio-spu"), SPU_VERSION)


def waiting_fetch() -> bytes:
    body = Writer(SPU_VERSION).i32(60_000).i32(1).i32(1 << 30).u8(0).u32(1).text("demo").u32(1)
    body.u32(0).i32(0).i64(0).i64(0).i32(1 << 30)
    return bytes(body.u32(0).out)


def test_a_list_with_a_million_elements(world: HostileWorld) -> None:
    """Each element takes longer to read than to send."""
    lists = struct.pack(">I", 1_000_000) + bytes(2_000_000)

    def attack() -> None:
        for _ in range(3):
            with controller(world) as client, pytest.raises((EOFError, ConnectionError)):
                client.ask(LIST, bytes(Writer(SC_VERSION).text("Topic").bytes_(lists).out))

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=2, memory_mib=64)


def test_many_filters_for_many_topics(world: HostileWorld) -> None:
    with controller(world) as client:
        for number in range(300):
            client.send(CREATE, create_topic(f"topic-{number}"))
        for _ in range(300):
            client.receive()

    def attack() -> None:
        with controller(world) as client, pytest.raises((EOFError, ConnectionError)):
            client.ask(LIST, list_objects("Topic", *["absent"] * 50_000))

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=2, memory_mib=64)


def test_fetches_that_wait_together(world: HostileWorld) -> None:
    """All of them get the same records, and the client does not read."""

    def attack() -> None:
        with contextlib.ExitStack() as stack:
            slow = [stack.enter_context(reader(world)) for _ in range(4)]
            for client in slow:
                frames = [client.frame(FETCH, waiting_fetch()) for _ in range(500)]
                client.socket.sendall(b"".join(frames))
            with reader(world) as writer:
                batch = their_batch(bytes(900_000))
                writer.ask(PRODUCE, produce([("demo", 0, batch)]))
                writer.ask(PRODUCE, produce([("demo", 0, batch)]))

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=20, memory_mib=256)


def test_millions_of_records_in_one_batch(world: HostileWorld) -> None:
    """To translate them takes long, though they are not compressed."""
    batch = their_batch(*[b""] * 3_000_000)

    def attack() -> None:
        with reader(world) as client:
            answer = client.ask(PRODUCE, produce([("demo", 0, batch)]))
            assert (answer.u32(), answer.text(), answer.u32(), answer.u32()) == (1, "demo", 1, 0)
            assert answer.i16() == TOO_LARGE

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=5, memory_mib=160)


def test_one_partition_fetched_many_times_in_one_request(world: HostileWorld) -> None:
    with reader(world) as writer:
        writer.ask(PRODUCE, produce([("demo", 0, their_batch(bytes(900_000)))]))
    body = Writer(SPU_VERSION).i32(0).i32(0).i32(1 << 30).u8(0).u32(1).text("demo").u32(900)
    for _ in range(900):
        body.u32(0).i32(0).i64(0).i64(0).i32(1 << 30)
    body.u32(0)

    def attack() -> None:
        with reader(world) as client:
            client.ask(FETCH, bytes(body.out))

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=5, memory_mib=128)


def test_a_reader_of_many_streams_that_does_not_read(world: HostileWorld) -> None:
    with reader(world) as writer:
        batch = their_batch(*[bytes(1_000)] * 800)
        for _ in range(8):
            writer.ask(PRODUCE, produce([("demo", 0, batch)]))

    def attack() -> None:
        with reader(world) as client:
            for _ in range(1_000):
                client.send(STREAM_FETCH, stream_fetch("demo", bytes_max=1 << 30))
            with reader(world) as other:
                other.ask(PRODUCE, produce([("demo", 0, batch)]))

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=20, memory_mib=128)


def test_watches_of_everything_while_topics_come(world: HostileWorld) -> None:
    with controller(world) as client:
        for number in range(300):
            client.send(CREATE, create_topic(f"topic-{number}"))
        for _ in range(300):
            client.receive()

    def attack() -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(5):
                idle = stack.enter_context(controller(world))
                for _ in range(100):
                    idle.send(WATCH, watch("Partition"))
            with controller(world) as maker:
                for number in range(20):
                    maker.ask(CREATE, create_topic(f"made-{number}"))

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=60, memory_mib=128)


def test_what_a_client_leaves_behind(world: HostileWorld) -> None:
    def attack() -> None:
        for _ in range(20):
            with reader(world) as client:
                for _ in range(200):
                    client.send(STREAM_FETCH, stream_fetch("demo"))
                for _ in range(100):
                    client.send(FETCH, waiting_fetch())

    attack()
    before = world.memory_bytes()
    cost = world.measure(attack)
    print(cost, world.memory_bytes() - before)
    cost.assert_bounded(rulers=20, memory_mib=32)

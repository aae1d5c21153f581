"""SmartModules are programs of clients: none may take what others need."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hostile import wasm_programs
from tests.hostile.fluvio_wire import (
    CREATE,
    PRODUCE,
    SC_VERSION,
    SPU_VERSION,
    STREAM_FETCH,
    FluvioClient,
    ad_hoc,
    chain,
    create_module,
    create_topic,
    produce,
    read_status,
    stream_fetch,
    their_batch,
)
from tests.hostile.hostile_world import HostileWorld

from pentalog.protocols.fluvio.codec import Reader

MODULE_INVALID = 6002
CHAIN_REFUSED = 6005
OTHER = 2
CHAIN_MAX = 16
GREEDY_INSTANCES = 100
"""What one client may run."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HostileWorld]:
    with HostileWorld(tmp_path / "data", "fluvio-sc", "fluvio-spu") as world:
        with controller(world) as client:
            assert read_status(client.ask(CREATE, create_topic("demo"))) == ("demo", 0)
        yield world


def controller(world: HostileWorld) -> FluvioClient:
    return FluvioClient(world.connect("fluvio-sc"), SC_VERSION)


def reader(world: HostileWorld) -> FluvioClient:
    return FluvioClient(world.connect("fluvio-spu"), SPU_VERSION)


def elsewhere(world: HostileWorld) -> FluvioClient:
    """Another client: it comes from another address."""
    address = ("127.0.0.1", world.port("fluvio-spu"))
    client = socket.create_connection(address, timeout=60, source_address=("127.0.0.2", 0))
    return FluvioClient(client, SPU_VERSION)


def fill(world: HostileWorld, *values: bytes) -> None:
    with reader(world) as client:
        client.ask(PRODUCE, produce([("demo", 0, their_batch(*values))]))


def stream(client: FluvioClient, *wasm: bytes) -> int:
    return client.send(
        STREAM_FETCH, stream_fetch("demo", modules=chain(*(ad_hoc(each) for each in wasm)))
    )


def error_of(frame: Reader) -> int:
    """The error code of a stream's frame."""
    frame.text()
    frame.u32()
    frame.u32()
    return frame.i16()


def test_tables_are_limited(world: HostileWorld) -> None:
    fill(world, b"x")

    def attack() -> None:
        with reader(world) as client:
            for _ in range(5):
                stream(client, wasm_programs.growing_table())
                assert error_of(client.receive()[1]) == 6004

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=10, memory_mib=256)


def test_one_client_does_not_take_all_instances(world: HostileWorld) -> None:
    fill(world, b"x")
    passing = wasm_programs.program()
    with contextlib.ExitStack() as stack:
        greedy = stack.enter_context(reader(world))
        for _ in range(GREEDY_INSTANCES // CHAIN_MAX + 1):
            stream(greedy, *[passing] * CHAIN_MAX)
        assert error_of(greedy.receive()[1]) == OTHER
        other = stack.enter_context(elsewhere(world))
        stream(other, wasm_programs.program(filtered="(unreachable)"))
        assert error_of(other.receive()[1]) == 6004


def test_modules_that_start_together_share_one_engine(world: HostileWorld) -> None:
    fill(world, b"x")
    failing = wasm_programs.program(filtered="(unreachable)")
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(reader(world)) for _ in range(6)]
        for client in clients:
            stream(client, failing)
        assert [error_of(client.receive()[1]) for client in clients] == [6004] * 6


def test_text_is_not_a_module(world: HostileWorld) -> None:
    with controller(world) as client:
        wat = create_module("text", wasm_programs.text().encode())
        assert read_status(client.ask(CREATE, wat)) == ("text", MODULE_INVALID)
        binary = create_module("binary", wasm_programs.program())
        assert read_status(client.ask(CREATE, binary)) == ("binary", 0)


def test_huge_functions_are_not_compiled(world: HostileWorld) -> None:
    bomb = wasm_programs.looping(10_000)

    def attack() -> None:
        with controller(world) as client:
            answer = client.ask(CREATE, create_module("bomb", bomb))
            assert read_status(answer) == ("bomb", MODULE_INVALID)

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=5, memory_mib=128)


def test_endless_modules_of_one_client_do_not_stop_those_of_another(world: HostileWorld) -> None:
    fill(world, b"x")

    def attack() -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(30):
                stream(stack.enter_context(reader(world)), wasm_programs.endless())
            other = stack.enter_context(elsewhere(world))
            stream(other, wasm_programs.program(filtered="(unreachable)"))
            assert error_of(other.receive()[1]) == 6004

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=30, memory_mib=128)


def test_output_handed_back_again_and_again(world: HostileWorld) -> None:
    fill(world, b"x")

    def attack() -> None:
        with reader(world) as client:
            stream(client, wasm_programs.copying())
            assert error_of(client.receive()[1]) == 6004

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=3, memory_mib=160)


def test_many_small_records_that_break_a_module(world: HostileWorld) -> None:
    many = their_batch(*[b""] * 100_000)
    modules = chain(ad_hoc(wasm_programs.trapping()))

    def attack() -> None:
        with reader(world) as client:
            client.ask(PRODUCE, produce([("demo", 0, many)], modules=modules))

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=10, memory_mib=128)

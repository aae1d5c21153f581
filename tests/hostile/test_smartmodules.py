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
    UPDATE_OFFSETS,
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

from pentalog.protocols.fluvio.codec import Reader, Writer

MODULE_INVALID = 6002
CHAIN_REFUSED = 6005
OTHER = 2
TOO_LARGE = 10
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


def aggregating(wasm: bytes, accumulator: bytes) -> bytes:
    """One link of a chain, with what it starts from."""
    head = Writer(SPU_VERSION).u8(1).bytes_(wasm).u8(3).bytes_(accumulator)
    return bytes(head.u16(0).u8(0).out)


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


def test_what_is_no_smart_module_does_not_keep_a_place(world: HostileWorld) -> None:
    """Two clients may take all the places that there are."""
    fill(world, b"x")
    places = [*[CHAIN_MAX] * (GREEDY_INSTANCES // CHAIN_MAX), GREEDY_INSTANCES % CHAIN_MAX]
    for source in ("127.0.0.1", "127.0.0.2"):
        with FluvioClient(world.connect("fluvio-spu", source), SPU_VERSION) as client:
            for count in places:
                stream(client, *[wasm_programs.misshapen()] * count)
            for _ in places:
                assert error_of(client.receive()[1]) == CHAIN_REFUSED
    with FluvioClient(world.connect("fluvio-spu", "127.0.0.3"), SPU_VERSION) as other:
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


def test_a_small_module_that_takes_long_to_compile(world: HostileWorld) -> None:
    """The compiler is ended, and others can have theirs compiled."""
    bomb = wasm_programs.entangled(1_000, 1_000)
    with controller(world) as client:
        answer = client.ask(CREATE, create_module("bomb", bomb))
        assert read_status(answer) == ("bomb", MODULE_INVALID)
        answer = client.ask(CREATE, create_module("other", wasm_programs.program()))
        assert read_status(answer) == ("other", 0)


def test_a_module_of_some_size_is_compiled_apart_and_runs(world: HostileWorld) -> None:
    fill(world, b"x")
    padding = " ".join("(drop (i32.const 100000))" for _ in range(1_000))
    with reader(world) as client:
        stream(client, wasm_programs.program(filtered=f"{padding} (unreachable)"))
        assert error_of(client.receive()[1]) == 6004


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


def test_millions_of_records_handed_back(world: HostileWorld) -> None:
    modules = chain(ad_hoc(wasm_programs.multiplying(2_300_000)))
    sent = produce([("demo", 0, their_batch(b"x"))], modules=modules)

    def attack() -> None:
        with reader(world) as client:
            answer = client.ask(PRODUCE, sent)
            assert (answer.u32(), answer.text(), answer.u32(), answer.u32()) == (1, "demo", 1, 0)
            assert answer.i16() == TOO_LARGE

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=5, memory_mib=160)


def test_accumulators_are_memory_too(world: HostileWorld) -> None:
    """Each stream has one of 15 MiB, and waits for records with it."""
    fill(world, b"x")
    link = aggregating(wasm_programs.aggregate(), bytes(15 << 20))

    def attack() -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(60):
                client = stack.enter_context(reader(world))
                client.send(STREAM_FETCH, stream_fetch("demo", 1, modules=chain(link)))
                assert client.ask(UPDATE_OFFSETS, bytes(4), version=0).u32() == 0
            last = stack.enter_context(reader(world))
            last.send(STREAM_FETCH, stream_fetch("demo", 1, modules=chain(link)))
            assert error_of(last.receive()[1]) == OTHER

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=40, memory_mib=800)


def test_many_small_records_that_break_a_module(world: HostileWorld) -> None:
    many = their_batch(*[b""] * 100_000)
    modules = chain(ad_hoc(wasm_programs.trapping()))

    def attack() -> None:
        with reader(world) as client:
            client.ask(PRODUCE, produce([("demo", 0, many)], modules=modules))

    cost = world.measure(attack)
    print(cost)
    cost.assert_bounded(rulers=10, memory_mib=128)

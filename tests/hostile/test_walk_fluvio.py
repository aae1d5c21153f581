"""Every request of Fluvio, on both ports, with its largest legal and its first illegal form.

No turn of the broker's loop may take longer than 20 ms of CPU.  What is too much has no answer in
Fluvio's protocol but hanging up, unless it names an object.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from tests.hostile.fluvio_wire import (
    CREATE,
    DELETE,
    FETCH,
    FETCH_OFFSETS,
    LIST,
    PRODUCE,
    SC_VERSION,
    SPU_VERSION,
    STREAM_FETCH,
    UPDATE,
    UPDATE_OFFSETS,
    WATCH,
    FluvioClient,
    create_topic,
    list_objects,
    produce,
    stream_fetch,
    their_batch,
    watch,
    wrapped,
)
from tests.hostile.longest_turn import REPETITIONS, UNSYNCED, TimedBroker

from pentalog.protocols.fluvio.codec import ELEMENTS_MAX, Reader, Writer
from pentalog.protocols.fluvio.sc import ScSession
from pentalog.protocols.fluvio.session import API_VERSIONS
from pentalog.protocols.fluvio.spu import SpuSession

TOPICS = 600
WIDE = "wide"
WIDE_PARTITIONS = 1_000
FULL = "full"
CONSUMERS = 50
UPDATE_CONSUMER, DELETE_CONSUMER, FETCH_CONSUMERS = 1006, 1007, 1008
NAME_INVALID, TOPIC_ERROR = 2006, 2000


@dataclass(frozen=True)
class Row:
    """Bodies of a request; the number of the attempt makes names that are not taken."""

    legal: Callable[[int], bytes]
    illegal: Callable[[int], bytes]
    hangs_up: bool = True
    """What is illegal ends the connection; else it is answered with a code that is not 0."""
    version: int | None = None


def texts(*values: str) -> bytes:
    body = Writer(SC_VERSION)
    for value in values:
        body.text(value)
    return bytes(body.out)


def grow(name: str, partitions: int) -> bytes:
    body = Writer(SC_VERSION).text(name).u8(0).u32(partitions)
    return wrapped("Topic", bytes(body.out))


def delete(name: str) -> bytes:
    return wrapped("Topic", bytes(Writer(SC_VERSION).text(name).boolean(False).out))


def fetch(parts: int) -> bytes:
    body = Writer(SPU_VERSION).i32(0).i32(0).i32(1 << 30).u8(0).u32(1).text(FULL).u32(parts)
    for _ in range(parts):
        body.u32(0).i32(0).i64(0).i64(0).i32(1 << 30)
    return bytes(body.u32(0).out)


def fetch_offsets(parts: int) -> bytes:
    body = Writer(SPU_VERSION).u32(1).text(WIDE).u32(parts)
    for index in range(parts):
        body.u32(index % WIDE_PARTITIONS)
    return bytes(body.out)


def update_offsets(count: int) -> bytes:
    return struct.pack(">I", count) + struct.pack(">qI", 0, 7) * count


def many_parts(count: int) -> bytes:
    batch = their_batch(b"x")
    return produce([(WIDE, number % WIDE_PARTITIONS, batch) for number in range(count)])


def many_batches(count: int) -> bytes:
    return produce([(WIDE, 0, their_batch(b"x") * count)])


SC_ROWS: dict[int, Row] = {
    API_VERSIONS: Row(lambda _: b"", lambda _: b"\0", version=0),
    CREATE: Row(
        lambda number: create_topic(f"made-{number}", 1_000),
        lambda number: create_topic(f"never-{number}", 1_000_000),
        hangs_up=False,
    ),
    DELETE: Row(
        lambda number: delete(f"gone-{number}"), lambda _: delete("absent"), hangs_up=False
    ),
    LIST: Row(
        lambda _: list_objects("Partition", *(f"{number}" for number in range(100))),
        lambda _: list_objects("Topic", *["x"] * ELEMENTS_MAX),
    ),
    WATCH: Row(
        lambda _: watch("Partition"),
        lambda _: wrapped("Nothing", bytes(1 << 20)),
    ),
    UPDATE: Row(
        lambda number: grow(f"topic-{number}", 1_000),
        lambda _: grow("topic-500", 1_000_000),
        hangs_up=False,
    ),
}
SPU_ROWS: dict[int, Row] = {
    API_VERSIONS: Row(lambda _: b"", lambda _: b"\0", version=0),
    PRODUCE: Row(lambda _: many_parts(ELEMENTS_MAX // 2), lambda _: many_parts(100_000)),
    FETCH: Row(lambda _: fetch(ELEMENTS_MAX - 1), lambda _: fetch(100_000)),
    FETCH_OFFSETS: Row(
        lambda _: fetch_offsets(ELEMENTS_MAX - 1), lambda _: fetch_offsets(2_000_000)
    ),
    STREAM_FETCH: Row(
        lambda _: stream_fetch(FULL, bytes_max=(1 << 31) - 1),
        lambda _: stream_fetch(FULL, modules=struct.pack(">I", 1 << 20) + bytes(1 << 20)),
    ),
    UPDATE_OFFSETS: Row(
        lambda _: update_offsets(ELEMENTS_MAX),
        lambda _: update_offsets(1_000_000),
        version=0,
    ),
    UPDATE_CONSUMER: Row(lambda _: struct.pack(">qI", 0, 7), lambda _: bytes(1 << 20)),
    DELETE_CONSUMER: Row(
        lambda _: bytes(Writer(SPU_VERSION).text("t" * 30_000).u32(0).text("c" * 30_000).out),
        lambda _: bytes(1 << 20),
    ),
    FETCH_CONSUMERS: Row(lambda _: b"\0", lambda _: bytes(1 << 20)),
}
PORTS = {
    "fluvio-sc": (SC_ROWS, ScSession.apis, SC_VERSION),
    "fluvio-spu": (SPU_ROWS, SpuSession.apis, SPU_VERSION),
}
"""A request without a row fails the test."""
CASES = [
    (port, key, form) for port, (rows, _, _) in PORTS.items() for key in rows for form in (0, 1)
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimedBroker]:
    data = tmp_path_factory.mktemp("walk") / "data"
    with TimedBroker(data, "fluvio-sc", "fluvio-spu", arguments=UNSYNCED) as broker:
        with connect(broker, "fluvio-sc") as client:
            client.ask(CREATE, create_topic(WIDE, WIDE_PARTITIONS))
            client.ask(CREATE, create_topic(FULL))
            for number in range(REPETITIONS):
                client.ask(CREATE, create_topic(f"gone-{number}", 200))
            for number in range(TOPICS):
                client.send(CREATE, create_topic(f"topic-{number}"))
            for _ in range(TOPICS):
                client.receive()
        with connect(broker, "fluvio-spu") as client:
            small = their_batch(*[b"x"] * 50_000)
            for _ in range(20):
                client.ask(PRODUCE, produce([(FULL, 0, small)]))
            for number in range(CONSUMERS):
                client.send(STREAM_FETCH, stream_fetch(WIDE, consumer_id=f"consumer-{number}"))
                stored = client.ask(UPDATE_CONSUMER, struct.pack(">qI", 1, number + 1))
                assert (stored.i64(), stored.i16()) == (1, 0)
        yield broker


def connect(broker: TimedBroker, port: str) -> FluvioClient:
    return FluvioClient(broker.connect(port), PORTS[port][2])


@pytest.mark.parametrize("port", PORTS)
def test_every_request_has_a_row(port: str) -> None:
    rows, apis, _ = PORTS[port]
    assert set(rows) == {*apis, API_VERSIONS}


def code_of(answer: Reader) -> int:
    """The code of an answer of the controller."""
    answer.text()
    return answer.i16()


@pytest.mark.parametrize(("port", "key", "form"), CASES)
def test_no_turn_is_long(broker: TimedBroker, port: str, key: int, form: int) -> None:
    row = PORTS[port][0][key]
    bodies = [(row.illegal if form else row.legal)(number) for number in range(REPETITIONS)]

    def ask() -> None:
        body = bodies.pop(0)
        with connect(broker, port) as client:
            if form and row.hangs_up:
                with pytest.raises(EOFError):
                    client.ask(key, body, row.version)
                return
            answer = client.ask(key, body, row.version)
            if row.hangs_up:
                return
            assert (code_of(answer) != 0) == bool(form)
            # The connection has survived.
            client.ask(API_VERSIONS, version=0)

    turn = broker.measure(ask)
    print(port, key, "illegal" if form else "legal", turn)
    assert turn.short, turn


@pytest.mark.parametrize("label", ["Topic", "Partition"])
def test_a_watch_of_everything_and_its_changes(broker: TimedBroker, label: str) -> None:
    made = 0

    def ask() -> None:
        nonlocal made
        made += 1
        with connect(broker, "fluvio-sc") as client:
            for _ in range(50):
                client.send(WATCH, watch(label))
            for _ in range(50):
                client.receive()
            client.send(CREATE, create_topic(f"watched-{label.lower()}-{made}"))
            for _ in range(51):
                client.receive()

    turn = broker.measure(ask)
    print(label, turn)
    assert turn.short, turn


def test_many_batches_in_one_request(broker: TimedBroker) -> None:
    def ask() -> None:
        with connect(broker, "fluvio-spu") as client:
            client.ask(PRODUCE, many_batches(2_000))
        with connect(broker, "fluvio-spu") as client, pytest.raises(EOFError):
            client.ask(PRODUCE, many_batches(200_000))

    turn = broker.measure(ask)
    print(turn)
    assert turn.short, turn


PIPELINED: dict[str, tuple[str, int, list[bytes]]] = {
    "creations": ("fluvio-sc", CREATE, [create_topic(f"pipe-{number}") for number in range(60)]),
    "listings": ("fluvio-sc", LIST, [list_objects("Partition")] * 20),
    "streams": ("fluvio-spu", STREAM_FETCH, [stream_fetch(FULL, bytes_max=1 << 30)] * 30),
    "fetches": ("fluvio-spu", FETCH, [fetch(1)] * 30),
    "writes": ("fluvio-spu", PRODUCE, [many_parts(1)] * 2_000),
    "offsets": ("fluvio-spu", FETCH_OFFSETS, [fetch_offsets(1)] * 2_000),
}


@pytest.mark.parametrize("name", PIPELINED)
def test_requests_that_come_together(broker: TimedBroker, name: str) -> None:
    port, key, bodies = PIPELINED[name]

    def ask() -> None:
        with connect(broker, port) as client:
            client.socket.sendall(b"".join(client.frame(key, body) for body in bodies))
            for _ in bodies:
                client.receive()

    turn = broker.measure(ask)
    print(name, turn)
    assert turn.short, turn

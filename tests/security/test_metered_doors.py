"""Quotas at the doors whose protocols know of none."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator

import pytest
from tests.security.guarded_world import GuardedBroker, Wire, guarded
from tests.security.matrix import matrix_kafka
from tests.security.matrix.matrix_blipmq import answers, frame, log_in, text
from tests.security.matrix.matrix_cursus import say
from tests.security.matrix.matrix_fluvio import Pair
from tests.support.cursus_world import Message, batch
from tests.unit.protocols.fluvio.fluvio_world import (
    create_topic,
    produce,
    stream_fetch,
    their_batch,
)

from pentalog.broker.operation import Quota
from pentalog.model.types import Partition
from pentalog.protocols.fluvio.codec import Writer

pytestmark = pytest.mark.clients
LIMIT = 10_000
OVER_S = 0.5
"""A client may use ten seconds' worth at once, and is then held back for what is over."""
SIZE = int(LIMIT * (10 + OVER_S))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    data = tmp_path_factory.mktemp("metered")
    listeners = ("rustlog", "blipmq", "cursus", "fluvio-sc", "fluvio-spu", "kafka+sasl")
    principals = ",".join(f"{name}=User:{name}" for name in listeners[:5])
    with guarded(data, listeners, listener_principals=principals, flush_interval_ms=0) as started:
        started.topic("orders", max_message_bytes="1000000")
        yield started


@pytest.fixture
def broker(started: GuardedBroker) -> Iterator[GuardedBroker]:
    """The one broker, without any quota."""
    yield started
    quotas = started.facade.quotas

    def remove_all() -> None:
        for owner, limits in list(quotas.all().items()):
            quotas.change(owner, dict.fromkeys(limits))
        quotas._buckets.clear()  # type: ignore[attr-defined]

    started.call(remove_all)
    started.hang_up()


def limit(broker: GuardedBroker, quota: Quota, user: str, value: float = LIMIT) -> None:
    owner = frozenset({("user", user)})
    broker.call(lambda: broker.facade.quotas.change(owner, {quota: value}))


def rustlog(broker: GuardedBroker) -> tuple[Callable[[], object], Callable[[], object]]:
    wire = broker.connect("rustlog")

    def write() -> object:
        sent = {"type": "Produce", "topic": "orders", "partition": 0, "records": ["A" * SIZE]}
        return wire.ask(json.dumps(sent).encode())

    return write, lambda: wire.ask(b"\xff")


def blipmq(broker: GuardedBroker) -> tuple[Callable[[], object], Callable[[], object]]:
    wire = broker.connect("blipmq")
    log_in(wire, "dev-key")
    sent = frame(3, 4, b"\1" + text("orders") + bytes(SIZE))
    return lambda: wire.send(sent), lambda: wire.ask(frame(7, 9))


def cursus(broker: GuardedBroker) -> tuple[Callable[[], object], Callable[[], object]]:
    wire = broker.connect("cursus")
    sent = batch([Message(bytes(SIZE), producer=b"p")], topic="orders")
    return lambda: wire.ask(sent), lambda: say(wire, "HELP")


def fluvio(broker: GuardedBroker) -> tuple[Callable[[], object], Callable[[], object]]:
    pair = Pair(broker.connect("fluvio-sc"), broker.connect("fluvio-spu"))
    sent = produce("orders", their_batch(bytes(SIZE)))
    return lambda: pair.ask(0, sent), lambda: pair.ask(18, b"", version=0)


@pytest.mark.parametrize("door", [rustlog, blipmq, cursus, fluvio])
def test_who_writes_too_much_is_served_later(
    broker: GuardedBroker,
    door: Callable[[GuardedBroker], tuple[Callable[[], object], Callable[[], object]]],
) -> None:
    limit(broker, Quota.WRITTEN, {"fluvio": "fluvio-spu"}.get(door.__name__, door.__name__))
    write, ask = door(broker)
    started_s = time.monotonic()
    write()
    ask()  # may have been read together with what was written
    ask()
    assert time.monotonic() - started_s >= 0.8 * OVER_S


def test_a_stream_is_pushed_no_faster_than_its_reader_may_read(broker: GuardedBroker) -> None:
    limit(broker, Quota.READ, "fluvio-spu")
    pair = Pair(broker.connect("fluvio-sc"), broker.connect("fluvio-spu"))
    pair.ask(0, produce("orders", their_batch(bytes(SIZE))))
    end = broker.call(lambda: broker.facade.log.marks(Partition("orders", 0)).end)
    started_s = time.monotonic()
    pair.ask(1003, stream_fetch("orders", end - 1))
    pair.ask(18, b"", version=0)
    assert time.monotonic() - started_s >= 0.8 * OVER_S


def limit_client(broker: GuardedBroker, quota: Quota, client: str, value: float) -> None:
    owner = frozenset({("client", client)})
    broker.call(lambda: broker.facade.quotas.change(owner, {quota: value}))


def ask_fluvio(broker: GuardedBroker, client: str, key: int, body: bytes) -> bytes:
    """The body of the answer to the first request of a connection."""
    head = struct.pack(">HhiH", key, 24, 1, len(client)) + client.encode()
    return broker.connect("fluvio-spu").ask(head + body)[4:]


def test_a_fluvio_client_is_told_for_how_long_it_is_held_back(broker: GuardedBroker) -> None:
    sent = produce("orders", their_batch(bytes(SIZE)))
    limit_client(broker, Quota.WRITTEN, "writer", LIMIT)
    limit_client(broker, Quota.READ, "reader", LIMIT)
    told = {
        client: int.from_bytes(ask_fluvio(broker, client, 0, sent)[-4:], "big")
        for client in ("reader", "writer")
    }
    assert told["reader"] == 0
    assert 0.5 * OVER_S < told["writer"] / 1000 <= 2 * OVER_S
    end = broker.call(lambda: broker.facade.log.marks(Partition("orders", 0)).end)
    fetch = Writer(24).i32(0).i32(1).i32(2 * SIZE).u8(0).u32(1).text("orders").u32(1)
    fetch.u32(0).i32(-1).i64(end - 1).i64(0).i32(2 * SIZE).u32(0)
    answer = ask_fluvio(broker, "reader", 1, bytes(fetch.out))
    assert 0.5 * OVER_S < int.from_bytes(answer[:4], "big") / 1000 <= 2 * OVER_S


def test_fluvio_clients_are_told_apart_by_their_own_names(broker: GuardedBroker) -> None:
    limit_client(broker, Quota.WRITTEN, "greedy", 1)
    sent = produce("orders", their_batch(b"x" * 100))
    delayed = {
        client: ask_fluvio(broker, client, 0, sent)[-4:] != bytes(4)
        for client in ("greedy", "modest", "")
    }
    assert delayed == {"greedy": True, "modest": False, "": False}


def partitions(broker: GuardedBroker, prefix: str) -> int:
    topics = broker.facade.topics
    return broker.call(
        lambda: sum(each.partitions for each in topics.all() if each.name.startswith(prefix))
    )


def change_rustlog(broker: GuardedBroker, name: str) -> bytes:
    asked = {"type": "CreateTopic", "topic": name, "partition_count": 6}
    return broker.connect("rustlog").ask(json.dumps(asked).encode())


def change_blipmq(broker: GuardedBroker, name: str) -> bytes:
    wire = broker.connect("blipmq")
    log_in(wire, "dev-key")
    return b"".join(answers(wire, frame(3, 4, b"\1" + text(name) + b"x")))


def change_cursus(broker: GuardedBroker, name: str) -> bytes:
    return say(broker.connect("cursus"), f"CREATE topic={name} partitions=6")


def change_fluvio(broker: GuardedBroker, name: str) -> bytes:
    pair = Pair(broker.connect("fluvio-sc"), broker.connect("fluvio-spu"))
    reader = pair.ask_controller(1001, create_topic(name))
    return bytes(reader.data[: reader.end])


@pytest.mark.parametrize("door", ["rustlog", "blipmq", "cursus", "fluvio"])
def test_who_makes_too_many_partitions_is_refused(broker: GuardedBroker, door: str) -> None:
    change = globals()[f"change_{door}"]
    limit(broker, Quota.CHANGED, {"fluvio": "fluvio-sc"}.get(door, door), 0.01)
    assert b"used up" not in change(broker, f"{door}-one")
    before = partitions(broker, door)
    assert before >= 1
    assert b"used up" in change(broker, f"{door}-two")
    assert partitions(broker, door) == before


@pytest.mark.parametrize("command", ["DELETE topic=doomed", "CREATE topic=growing partitions=9"])
def test_deletions_and_growth_count_too(broker: GuardedBroker, command: str) -> None:
    broker.topic(command.split()[1].removeprefix("topic="), partitions=3)
    limit(broker, Quota.CHANGED, "cursus", 0.01)
    assert b"OK" in say(broker.connect("cursus"), command)
    assert b"used up" in change_cursus(broker, "more")


def test_kafka_counts_for_whoever_has_logged_in(broker: GuardedBroker) -> None:
    users = broker.facade.users
    for name in ("edge", "other"):
        broker.call(lambda name=name: users.set_password(name, "password"))
    limit(broker, Quota.WRITTEN, "edge", 1)
    throttled = {}
    for name in ("edge", "other"):
        client = matrix_kafka.by_password(
            broker.connect("kafka+sasl"), "SCRAM-SHA-256", "password", user=name
        )
        answer = client.ask(0, 9, matrix_kafka.records("orders"))
        throttled[name] = answer.throttle_time.total_seconds() > 0
    assert throttled == {"edge": True, "other": False}


def test_time_is_counted(broker: GuardedBroker) -> None:
    limit(broker, Quota.WORK, "cursus", 0.0001)
    wire: Wire = broker.connect("cursus")
    started_s = time.monotonic()
    for _ in range(3):
        say(wire, "HELP")
    assert time.monotonic() - started_s >= 0.5


def test_nobody_else_is_held_back(broker: GuardedBroker) -> None:
    limit(broker, Quota.WRITTEN, "somebody else", 1)
    write, ask = rustlog(broker)
    write()
    assert ask() == b"\xff"

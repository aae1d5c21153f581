"""Kafka requests that name much, or the same again and again, must cost others little."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.hostile.hostile_world import HostileWorld, ask, compact, flexible, string, uvarint
from tests.server.broker_process import request

PARTITIONS = 2_000


def array(items: list[bytes]) -> bytes:
    """Encode an array as Kafka's older versions do."""
    return struct.pack(">i", len(items)) + b"".join(items)


def metadata(names: list[str], *, create: bool = False) -> bytes:
    return request(3, 4, 1, array([string(name) for name in names]) + bytes([create]))


def create_topics(topics: list[tuple[str, int]]) -> bytes:
    wanted = [string(name) + struct.pack(">ihii", count, 1, 0, 0) for name, count in topics]
    return request(19, 2, 1, array(wanted) + struct.pack(">ib", 60_000, 0))


def commit(group: str, topic: str, partitions: int) -> bytes:
    offsets = [struct.pack(">iqi", index, 1, -1) + string("") for index in range(partitions)]
    return request(
        8, 6, 1, string(group) + struct.pack(">i", -1) + string("")
        + array([string(topic) + array(offsets)]),
    )  # fmt: skip


def fetch_session(topic: str, partitions: int) -> bytes:
    """Open a session that remembers many partitions; most of them do not exist."""
    cursors = [struct.pack(">iqqi", index, 0, 0, 100) for index in range(partitions)]
    head = struct.pack(">iiiibii", -1, 0, 0, 1 << 20, 0, 0, 0)
    return request(1, 8, 1, head + array([string(topic) + array(cursors)]) + array([]))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileWorld]:
    with HostileWorld(tmp_path_factory.mktemp("hostile")) as made:
        with made.connect() as client:
            ask(client, create_topics([("large", PARTITIONS)]))
            ask(client, commit("group", "large", PARTITIONS))
        yield made


def attack(world: HostileWorld, frame: bytes, count: int = 1) -> Callable[[], None]:
    """Send a request some times and read what comes, if anything does."""

    def run() -> None:
        for _ in range(count):
            with world.connect() as client, contextlib.suppress(EOFError, ConnectionError):
                ask(client, frame)

    return run


def test_a_quarter_of_a_million_names(world: HostileWorld) -> None:
    frame = metadata([f"n{number}" for number in range(250_000)])
    cost = world.measure(attack(world, frame))
    print(cost)
    cost.assert_bounded(rulers=1, memory_mib=32)


def test_one_topic_named_a_thousand_times(world: HostileWorld) -> None:
    with world.connect() as client:
        once = ask(client, metadata(["large"]))
        assert ask(client, metadata(["large"] * 1_000)) == once
    cost = world.measure(attack(world, metadata(["large"] * 1_000), 3))
    print(cost)
    cost.assert_bounded(rulers=1, memory_mib=16)


def test_all_offsets_of_one_group_asked_500_times(world: HostileWorld) -> None:
    group = compact("group") + uvarint(0) + b"\0"
    once = flexible(9, 8, 1, uvarint(2) + group + b"\0\0")
    often = flexible(9, 8, 1, uvarint(501) + group * 500 + b"\0\0")
    with world.connect() as client:
        assert ask(client, often) == ask(client, once)
    cost = world.measure(attack(world, often))
    print(cost)
    cost.assert_bounded(rulers=1, memory_mib=16)


def test_one_topic_described_a_thousand_times(world: HostileWorld) -> None:
    resource = b"\x02" + string("large") + struct.pack(">i", -1)
    with world.connect() as client:
        once = ask(client, request(32, 1, 1, array([resource]) + b"\1"))
        often = request(32, 1, 1, array([resource] * 1_000) + b"\1")
        assert ask(client, often) == once
    cost = world.measure(attack(world, often))
    print(cost)
    cost.assert_bounded(rulers=1, memory_mib=16)


def test_a_hundred_topics_of_eight_partitions(world: HostileWorld) -> None:
    frame = create_topics([(f"made-{number}", 8) for number in range(100)])
    cost = world.measure(attack(world, frame))
    print(cost)
    cost.assert_bounded(rulers=20, memory_mib=64)


def test_records_of_two_thousand_partitions_deleted(world: HostileWorld) -> None:
    offsets = [struct.pack(">iq", index, -1) for index in range(PARTITIONS)]
    frame = request(21, 0, 1, array([string("large") + array(offsets)]) + struct.pack(">i", 60_000))
    cost = world.measure(attack(world, frame))
    print(cost)
    cost.assert_bounded(rulers=2, memory_mib=32)


def test_three_thousand_unknown_names_with_creation(world: HostileWorld) -> None:
    frame = metadata([f"wished-{number}" for number in range(3_000)], create=True)
    cost = world.measure(attack(world, frame))
    print(cost)
    cost.assert_bounded(rulers=40, memory_mib=64)


def test_fetch_sessions_that_remember_ten_thousand_partitions(world: HostileWorld) -> None:
    cost = world.measure(attack(world, fetch_session("large", 10_000), 20))
    print(cost)
    cost.assert_bounded(rulers=30, memory_mib=48)


def session_of(answer: bytes) -> int:
    """The session id in an answer to `fetch_session`, which must not be an error."""
    _, error, session_id = struct.unpack_from(">ihi", answer)
    assert error == 0
    return int(session_id)


def test_one_client_does_not_take_all_fetch_sessions(world: HostileWorld) -> None:
    frame = fetch_session("large", 5)

    def run() -> None:
        with world.connect(source="127.0.0.3") as greedy:
            found = [session_of(ask(greedy, frame)) for _ in range(2_000)]
            assert 0 in found, "the cache is full"
            with world.connect(source="127.0.0.2") as modest:
                assert all(session_of(ask(modest, frame)) for _ in range(100))
            assert not session_of(ask(greedy, frame)), "served without one"

    cost = world.measure(run)
    print(cost)
    cost.assert_bounded(rulers=30, memory_mib=48)


def test_a_header_of_a_million_tagged_fields(tmp_path: Path) -> None:
    with HostileWorld(tmp_path) as world:
        tags = uvarint(1_000_000) + b"\0\0" * 1_000_000
        cost = world.measure(attack(world, request(18, 3, 1, tags)))
        print(cost)
        cost.assert_bounded(rulers=1, memory_mib=32)

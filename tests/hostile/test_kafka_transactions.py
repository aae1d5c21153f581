"""Transactions that hold much, end much at once, or are many: others are served meanwhile."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.hostile.hostile_world import HostileWorld, ask, compact, flexible, uvarint
from tests.hostile.test_batches import create
from tests.hostile.test_kafka_requests import commit
from tests.server.broker_process import answer, request

NO_MEMBER = struct.pack(">i", -1) + b"\1\0"
INVALID_COMMIT_OFFSET_SIZE = 28
LONG = "g" * 30_000


class Client:
    """A connection that pipelines."""

    def __init__(self, world: HostileWorld) -> None:
        self._socket = world.connect()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask_all(self, frames: Sequence[bytes], at_once: int = 50) -> list[bytes]:
        answers = []
        for start in range(0, len(frames), at_once):
            some = frames[start : start + at_once]
            self._socket.sendall(b"".join(some))
            answers += [answer(self._socket)[1] for _ in some]
        return answers

    def identify(self, *names: str, timeout_ms: int = 60_000) -> list[Producer]:
        """InitProducerId for each name."""
        rest = struct.pack(">iqh", timeout_ms, -1, -1) + b"\0"
        answers = self.ask_all([flexible(22, 4, 7, compact(name) + rest) for name in names])
        assert {struct.unpack_from(">h", each, 5)[0] for each in answers} == {0}
        return [
            Producer(compact(name), each[7:17]) for name, each in zip(names, answers, strict=True)
        ]


class Producer(NamedTuple):
    """A transactional id and the identity that was given to it, as they are sent."""

    name: bytes
    who: bytes

    def add_group(self, group: str) -> bytes:
        return flexible(25, 3, 7, self.name + self.who + compact(group) + b"\0")

    def add_partition(self) -> bytes:
        topics = uvarint(2) + compact("t") + uvarint(2) + struct.pack(">i", 0) + b"\0\0"
        return flexible(24, 3, 7, self.name + self.who + topics)

    def commit(self, group: str, partitions: int, metadata: str = "") -> bytes:
        """TxnOffsetCommit of a version that lets the group take part by itself."""
        offsets = b"".join(
            struct.pack(">iqi", index, 1, -1) + compact(metadata) + b"\0"
            for index in range(partitions)
        )
        topics = uvarint(2) + compact("t") + uvarint(partitions + 1) + offsets + b"\0\0"
        return flexible(28, 5, 7, self.name + compact(group) + self.who + NO_MEMBER + topics)

    def end(self, *, commit: bool) -> bytes:
        return flexible(26, 3, 7, self.name + self.who + bytes([commit]) + b"\0")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HostileWorld]:
    with HostileWorld(tmp_path, arguments=("--flush-interval-ms", "0")) as made:
        with made.connect() as client:
            create(client, "t", partitions=100)
        yield made


def test_groups_added_to_a_transaction_are_limited(world: HostileWorld) -> None:
    with Client(world) as client:
        (producer,) = client.identify("x")
        frames = [producer.add_group(f"{number}{LONG}") for number in range(4_000)]
        found: set[int] = set()

        def add() -> None:
            for each in client.ask_all(frames):
                found.add(struct.unpack_from(">h", each, 5)[0])

        cost = world.measure(add)
        print(cost)
        assert found == {0, INVALID_COMMIT_OFFSET_SIZE}
        assert cost.memory_bytes <= 110 << 20
        # What the transaction held is free again when it has ended.
        frames = [producer.end(commit=False), producer.add_group("another")]
        for each in client.ask_all(frames, at_once=1):
            assert struct.unpack_from(">h", each, 5)[0] == 0


def test_offsets_of_open_transactions_count_as_those_of_their_owner(tmp_path: Path) -> None:
    """Two clients from different addresses: the first must leave room for the second."""
    arguments = ("--offsets-bytes-max", "2000000", "--flush-interval-ms", "0")
    with HostileWorld(tmp_path, arguments=arguments) as world, Client(world) as greedy:
        with world.connect() as client:
            create(client, "t", partitions=100)
        (producer,) = greedy.identify("greedy")
        frames = [producer.commit(f"group {number}", 100, "m" * 1_000) for number in range(40)]
        # Behind the code: the tagged fields of the partition, of the topic and of the answer.
        codes = {
            struct.unpack_from(">h", each, len(each) - 5)[0] for each in greedy.ask_all(frames)
        }
        assert codes == {0, INVALID_COMMIT_OFFSET_SIZE}
        with world.connect(source="127.0.0.2") as modest:
            for number in range(10):
                found = ask(modest, commit(f"modest {number}", "t", 100))
                assert struct.unpack_from(">h", found, len(found) - 2)[0] == 0


def test_many_offsets_become_real_in_slices(world: HostileWorld) -> None:
    with Client(world) as client:
        (producer,) = client.identify("x")
        client.ask_all([producer.commit(f"group {number}", 100) for number in range(1_000)], 5)
        cost = world.measure(lambda: client.ask_all([producer.end(commit=True)]))
    print(cost)
    cost.assert_wait(0.3)


@pytest.mark.parametrize("kind", ["committed", "staged"])
def test_offsets_of_a_deleted_topic_are_removed_in_slices(world: HostileWorld, kind: str) -> None:
    with Client(world) as client:
        (producer,) = client.identify("x")
        frames = [producer.commit(f"group {number}", 100) for number in range(1_000)]
        if kind == "committed":
            frames = [commit(f"group {number}", "t", 100) for number in range(1_000)]
        client.ask_all(frames, 5)
        names = struct.pack(">ih", 1, 1) + b"t" + struct.pack(">i", 60_000)
        cost = world.measure(lambda: client.ask_all([request(20, 1, 1, names)]))
        print(cost)
        cost.assert_wait(0.3)
        # They are not there for a topic created again, not even while some are still to be removed.
        with world.connect() as other:
            create(other, "t", partitions=100)
        body = compact("group 7") + uvarint(2) + compact("t") + uvarint(2)
        found = client.ask_all([flexible(9, 7, 1, body + struct.pack(">i", 0) + b"\0\0\0")])[0]
        # The header's and the answer's start, the topic, one partition: its offset.
        (offset,) = struct.unpack_from(">q", found, 1 + 4 + 1 + 2 + 1 + 4)
        assert offset == -1


def test_many_transactions_time_out_in_slices(world: HostileWorld) -> None:
    with Client(world) as client:
        names = [f"x{number}" for number in range(8_000)]
        producers = client.identify(*names, timeout_ms=6_000)
        client.ask_all([producer.add_partition() for producer in producers], 1_000)

        def wait() -> None:
            while ongoing(client):
                time.sleep(0.1)

        assert ongoing(client) == len(producers), "none has ended yet"
        cost = world.measure(wait)
    print(cost)
    cost.assert_wait(0.3)


def ongoing(client: Client) -> int:
    """The number of open transactions, by ListTransactions."""
    states = uvarint(2) + compact("Ongoing") + b"\1" + struct.pack(">q", -1) + b"\0\0"
    (found,) = client.ask_all([flexible(66, 1, 7, states[:-1])])
    return found.count(b"Ongoing")

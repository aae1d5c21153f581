"""Producers with ids of their own choice, and pipelined batches that no run can be made of."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hostile.hostile_world import HostileWorld, ask, compact, flexible, uvarint
from tests.hostile.test_batches import create, produce
from tests.server.broker_process import answer

from pentalog import kernels
from pentalog.model import batch
from pentalog.model.types import Record

NOW_MS = time.time_ns() // 1_000_000
REMEMBERED = 2_000
"""By one partition, of the 40,000 that the broker is told to remember."""


def idempotent(producer_id: int, sequence: int) -> bytearray:
    data = bytearray(batch.build([Record(b"v")], timestamp_ms=NOW_MS))
    struct.pack_into(">qhi", data, 43, producer_id, 0, sequence)
    struct.pack_into(">I", data, 17, kernels.crc32c(memoryview(data)[21:]))
    return data


def pipeline(world: HostileWorld, frames: list[bytes]) -> list[bytes]:
    """Send all at once, and read the answers meanwhile."""
    with world.connect() as client:
        sender = threading.Thread(target=client.sendall, args=[b"".join(frames)], daemon=True)
        sender.start()
        answers = [answer(client)[1] for _ in frames]
        sender.join()
    return answers


def describe_producers(world: HostileWorld) -> int:
    """The number of producers that a partition remembers."""
    body = uvarint(2) + compact("t") + uvarint(2) + struct.pack(">i", 0) + b"\0\0"
    with world.connect() as client:
        found = ask(client, flexible(61, 0, 1, body))
    # Each has an id, an epoch, a sequence, a time, an epoch of the coordinator, a start, no tags.
    return len(found) // struct.calcsize(">qiiqiqx")


def codes(answers: list[bytes]) -> set[int]:
    return {struct.unpack_from(">h", each, 4 + 2 + 1 + 4 + 4)[0] for each in answers}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HostileWorld]:
    with HostileWorld(tmp_path, arguments=("--producers-max", "40000")) as made:
        with made.connect() as client:
            create(client, "t")
        yield made


def test_ids_of_producers_do_not_fill_the_memory(world: HostileWorld) -> None:
    def write(first: int, count: int) -> None:
        frames = [produce("t", idempotent(first + number, 0)) for number in range(count)]
        assert codes(pipeline(world, frames)) == {0}

    cost = world.measure(lambda: write(1, 40_000))
    print(cost)
    cost.assert_bounded(rulers=20, memory_mib=16)
    remembered = describe_producers(world)
    assert REMEMBERED - 1 <= remembered <= REMEMBERED + 1


def test_a_producer_that_goes_on_is_not_forgotten(world: HostileWorld) -> None:
    faithful = 7
    for sequence in range(5):
        others = [produce("t", idempotent(1_000 * (sequence + 1) + n, 0)) for n in range(900)]
        pipeline(world, [produce("t", idempotent(faithful, sequence)), *others])
    with world.connect() as client:
        repeated = ask(client, produce("t", idempotent(faithful, 4)))
        gap = ask(client, produce("t", idempotent(faithful, 9)))
    out_of_order = 45
    assert codes([repeated]) == {0}
    assert codes([gap]) == {out_of_order}
    (offset,) = struct.unpack_from(">q", repeated, 4 + 2 + 1 + 4 + 4 + 2)
    assert offset == 4 * 901, "a repetition gets the offset of the first time"


@pytest.mark.parametrize("kind", ["distinct", "out of sequence"])
def test_pipelined_batches_that_must_be_told_apart(world: HostileWorld, kind: str) -> None:
    frames = [produce("t", idempotent(1, 0))]
    for number in range(12_000):
        producer_id, sequence = (number + 2, 0) if kind == "distinct" else (1, 7 + number % 2)
        frames.append(produce("t", idempotent(producer_id, sequence)))
    cost = world.measure(lambda: pipeline(world, frames))
    print(cost)
    cost.assert_bounded(rulers=10, memory_mib=32)
    # A turn ends after a few milliseconds, not when everything that was read is served.
    cost.assert_wait(0.15)


def test_a_sequence_below_zero_is_refused(world: HostileWorld) -> None:
    invalid_record = 87
    with world.connect() as client:
        for sequence in (-1, -7, -1 << 31):
            assert codes([ask(client, produce("t", idempotent(3, sequence)))]) == {invalid_record}
        # Nothing of it is remembered.
        assert codes([ask(client, produce("t", idempotent(3, 0)))]) == {0}
    frames = [produce("t", idempotent(4, sequence)) for sequence in (-1, 0, 1)]
    found = [codes([each]) for each in pipeline(world, frames)]
    assert found == [{invalid_record}, {0}, {0}]

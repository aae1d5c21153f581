"""Readers that wait for records must not make those expensive for the clients that write them."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hostile.hostile_world import HostileWorld, ask, string
from tests.hostile.test_batches import create, produce
from tests.server.broker_process import request

from pentalog.model import batch
from pentalog.model.types import Record

PARTITIONS = 2_000
READERS = 10
WRITES = 200


def long_poll(topic: str, *, bytes_min: int) -> bytes:
    """Fetch 8 from the end of every partition, for a minute or until so much has come."""
    cursors = b"".join(struct.pack(">iqqi", index, 0, -1, 1 << 20) for index in range(PARTITIONS))
    head = struct.pack(">iiiibii", -1, 60_000, bytes_min, 1 << 30, 0, 0, -1)
    body = head + struct.pack(">i", 1) + string(topic) + struct.pack(">i", PARTITIONS) + cursors
    return request(1, 8, 1, body + struct.pack(">i", 0))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HostileWorld]:
    with HostileWorld(tmp_path) as made:
        with made.connect() as client:
            create(client, "watched", partitions=PARTITIONS)
        yield made


def write(world: HostileWorld) -> None:
    data = batch.build([Record(b"v")], timestamp_ms=time.time_ns() // 1_000_000)
    with world.connect() as client:
        for _ in range(WRITES):
            ask(client, produce("watched", data))


def test_long_polls_of_many_partitions_do_not_slow_down_one_writer(world: HostileWorld) -> None:
    alone = world.measure(lambda: write(world))
    with contextlib.ExitStack() as stack:
        for _ in range(READERS):
            reader = stack.enter_context(world.connect())
            reader.sendall(long_poll("watched", bytes_min=(1 << 31) - 1))
        _settle(world)
        watched = world.measure(lambda: write(world))
    print(alone, watched)
    assert watched.cpu_s <= 4 * alone.cpu_s + watched.ruler_s
    watched.assert_bounded(rulers=10, memory_mib=32)


def _settle(world: HostileWorld) -> None:
    """Wait until the broker has nothing to do but the upkeep of an idle one."""
    used_s = world.cpu_s()
    while True:
        time.sleep(0.2)
        before_s, used_s = used_s, world.cpu_s()
        if used_s - before_s < 0.02:
            return

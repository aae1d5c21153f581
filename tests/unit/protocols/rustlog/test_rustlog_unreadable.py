"""Batches that an older broker stored and nobody can read."""

from __future__ import annotations

import pytest
from rustlog_world import RustLogConnection, RustLogWorld, create, fetch, fetched
from tests.support.logs import crooked, plant

from pentalog.model import batch
from pentalog.model.types import Ack, Partition, Record

DEMO = Partition("demo", 0)


def append(world: RustLogWorld, data: bytearray) -> None:
    log = world.disk.broker.log
    log.settle(log.append(DEMO, memoryview(data)), Ack.DURABLE)
    world.disk.runtime.run()


@pytest.mark.parametrize("codec", [0, 4])
def test_fetches_get_past_what_cannot_be_read(
    world: RustLogWorld, peer: RustLogConnection, codec: int
) -> None:
    peer.ask(create("demo", 1))
    append(world, batch.build([Record(b"a")], timestamp_ms=1000))
    partition = world.disk.store.get(DEMO)
    plant(partition, crooked([Record(b"v")] * 3, bytearray.clear, codec=codec))
    append(world, batch.build([Record(b"b")], timestamp_ms=1000))
    assert fetched(peer.ask(fetch("demo", 0, 0))) == ([b"a", b"b"], 5)
    assert fetched(peer.ask(fetch("demo", 0, 2))) == ([b"b"], 5)

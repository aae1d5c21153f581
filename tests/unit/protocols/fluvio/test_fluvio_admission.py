"""Requests that follow one whose batches the log opens on a lane are served after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fluvio_world import (
    Client,
    FluvioBroker,
    ad_hoc,
    chain,
    create_topic,
    produce,
    their_batch,
)
from wat_modules import module

from pentalog.model import batch
from pentalog.model.types import Horizon, Partition

PRODUCE = 0
AT = Partition("demo", 0)
LARGE = bytes(2 << 20)
pytestmark = pytest.mark.local_engine("a cluster checks records by itself")


@pytest.fixture
def compacted(tmp_path: Path) -> Iterator[FluvioBroker]:
    broker = FluvioBroker(tmp_path / "data")
    broker.sc().ask(1001, create_topic("demo"))
    settings = {"cleanup.policy": "compact", "max.message.bytes": str(16 << 20)}
    broker.broker.topics.configure("demo", settings)
    yield broker
    broker.close()


def values(broker: FluvioBroker) -> list[bytes | None]:
    log = broker.broker.log
    found: list[bytes | None] = []
    while len(found) < log.marks(AT).end:
        opened = log.open(AT, len(found), bytes_max=1, horizon=Horizon.END).value
        found += [
            record.value for _, record in batch.records_of(opened.batches, 0, bytes_max=4 << 20)
        ]
    return found


def release(broker: FluvioBroker, spu: Client) -> None:
    broker.runtime.held_lanes.clear()
    broker.runtime.release()
    for _ in range(4):
        spu.run()
        spu.feed(b"")
    assert not spu.line.full


def test_an_uncompressed_batch_on_a_lane_is_not_overtaken(compacted: FluvioBroker) -> None:
    spu = compacted.spu()
    compacted.runtime.held_lanes.add("open")
    spu.request(PRODUCE, produce("demo", their_batch((b"k", LARGE))))
    spu.request(PRODUCE, produce("demo", their_batch((b"k", b"newest"))))
    spu.run()
    assert compacted.broker.log.marks(AT).end == 0
    release(compacted, spu)
    assert [number for number, _ in spu.frames()] == [1, 2]
    assert values(compacted) == [LARGE, b"newest"]


@pytest.mark.parametrize("lane", ["translate", "open"])
def test_a_batch_for_smart_modules_is_not_overtaken(compacted: FluvioBroker, lane: str) -> None:
    spu = compacted.spu()
    compacted.runtime.held_lanes.add(lane)
    first = b"a" * (2 << 20)
    modules = chain(ad_hoc(module("filter")))
    spu.request(PRODUCE, produce("demo", their_batch((b"k", first)), modules=modules))
    spu.request(PRODUCE, produce("demo", their_batch((b"k", b"a newer one")), modules=modules))
    spu.request(PRODUCE, produce("demo", their_batch((b"k", b"newest"))))
    spu.run()
    assert compacted.broker.log.marks(AT).end == 0
    release(compacted, spu)
    assert [number for number, _ in spu.frames()] == [1, 2, 3]
    assert values(compacted) == [first, b"a newer one", b"newest"]

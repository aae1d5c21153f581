"""Batches for SmartModules: opened elsewhere than on the loop if they are large."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fluvio_world import (
    FluvioBroker,
    ad_hoc,
    chain,
    create_topic,
    produce,
    read_produced,
    their_batch,
)
from test_fluvio_large import MESSAGE_TOO_LARGE, PRODUCE, zipped
from wat_modules import module

from pentalog.model.types import Partition
from pentalog.protocols.fluvio.codec import Reader

AT = Partition("demo", 0)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[FluvioBroker]:
    broker = FluvioBroker(tmp_path / "data")
    broker.sc().ask(1001, create_topic("demo"))
    yield broker
    broker.close()


@pytest.mark.parametrize("made", [their_batch, zipped], ids=["plain", "compressed"])
def test_large_batches_are_opened_on_a_lane(
    local: FluvioBroker, made: Callable[..., bytes]
) -> None:
    spu = local.spu()
    local.runtime.held_lanes.add("translate")
    sent = made(b"a" * 60_000, b"b" * 60_000, b"apple")
    spu.request(PRODUCE, produce("demo", sent, modules=chain(ad_hoc(module("filter")))))
    spu.run()
    assert not spu.frames()
    assert local.broker.log.marks(AT).end == 0
    local.runtime.release()
    spu.run()
    ((_, body),) = spu.frames()
    answer = Reader(memoryview(body), 0, len(body), spu.version)
    assert read_produced(answer)[0][1] == [(0, 0, 0)]
    assert local.broker.log.marks(AT).end == 2


def test_what_holds_too_much_is_refused(local: FluvioBroker) -> None:
    bomb = zipped(bytes(5 << 20))
    sent = produce("demo", bomb, bomb, modules=chain(ad_hoc(module("filter"))))
    (refused,) = read_produced(local.spu().ask(PRODUCE, sent))[0][1]
    assert refused == (0, MESSAGE_TOO_LARGE, 0)
    assert local.broker.log.marks(AT).end == 0

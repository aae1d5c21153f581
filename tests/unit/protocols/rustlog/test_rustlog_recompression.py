"""Large batches for a topic that compresses them are compressed on a lane, in their order."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rustlog_world import PING, RustLogWorld, create, fetch, fetched, produce, text

from pentalog.model.types import Partition

LARGE = b"0123456789abcdef" * 20_000
AT = Partition("zipped", 0)
pytestmark = pytest.mark.local_engine("a cluster compresses by itself")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[RustLogWorld]:
    opened = RustLogWorld(tmp_path)
    opened.connect().asks(create("zipped", 1))
    opened.disk.broker.topics.configure("zipped", {"compression.type": "gzip"})
    yield opened
    opened.close()


def binary(*values: bytes) -> bytes:
    return produce("zipped", 0, *values)


def in_json(*values: bytes) -> bytes:
    records = [base64.b64encode(value).decode() for value in values]
    return text(type="Produce", topic="zipped", partition=0, records=records)


def base_offset(reply: bytes) -> int:
    if reply[:1] == b"{":
        return int(json.loads(reply)["base_offset"])
    return int(struct.unpack_from(">Q", reply, 1)[0])


@pytest.mark.parametrize("made", [binary, in_json])
def test_large_batches_are_compressed_on_a_lane(
    world: RustLogWorld, made: Callable[..., bytes]
) -> None:
    peer = world.connect()
    world.disk.runtime.held_lanes.add("open")
    asked = made(LARGE) + made(b"small") + fetch("zipped", 0, 0) + PING
    peer.feed(asked)
    peer.run()
    assert world.disk.broker.log.marks(AT).end == 0
    assert peer.line.frames() == []
    assert peer.line.held
    world.disk.runtime.held_lanes.clear()
    world.disk.runtime.release()
    for _ in range(4):
        peer.run()
        peer.feed(b"")
    first, second, third, pong = peer.line.frames()
    assert [base_offset(first), base_offset(second)] == [0, 1]
    assert fetched(third) == ([LARGE, b"small"], 2)
    assert pong == b"\xff"
    assert world.disk.broker.log.size_bytes(AT) < len(LARGE) // 4


@pytest.mark.parametrize("made", [binary, in_json])
def test_a_batch_that_the_topic_refuses_is_answered_in_its_place(
    world: RustLogWorld, made: Callable[..., bytes]
) -> None:
    world.disk.broker.topics.configure("zipped", {"cleanup.policy": "compact"})
    peer = world.connect()
    peer.asks(made(LARGE) + PING)
    peer.feed(b"")
    refused, pong = peer.line.frames()
    assert b"key" in refused
    assert pong == b"\xff"
    assert world.disk.broker.log.marks(AT).end == 0


def test_requests_for_several_partitions_keep_their_order(world: RustLogWorld) -> None:
    world.connect().asks(create("plain", 1))
    peer = world.connect()
    other = text(type="Produce", topic="plain", partition=0, records=["eA=="])
    peer.asks(in_json(LARGE) + other + in_json(LARGE, LARGE) + in_json())
    for _ in range(4):
        peer.feed(b"")
        peer.run()
    answers = peer.line.frames()
    assert [base_offset(answer) for answer in answers] == [0, 0, 1, 3]


NO_REQUEST = text(type="Produce", topic="zipped")
NO_TOPIC = text(type="Produce", topic="absent", partition=0, records=["eA=="])
NO_JSON = struct.pack(">I", 3) + b"{no"
NO_FRAME = struct.pack(">I", 0)


@pytest.mark.parametrize("behind", [NO_REQUEST, NO_TOPIC, NO_JSON, NO_FRAME])
def test_requests_that_are_tried_one_by_one_are_answered_before_a_refusal(
    world: RustLogWorld, behind: bytes
) -> None:
    world.disk.broker.topics.configure("zipped", {"max.message.bytes": "100000"})
    peer = world.connect()
    peer.feed(in_json(LARGE[:80_000]) + in_json(LARGE[:160_000]) + in_json(b"small") + behind)
    for _ in range(6):
        peer.run()
        peer.feed(b"")
    first, second, third, fourth = (json.loads(reply) for reply in peer.line.frames())
    assert first["base_offset"] == 0
    assert "max.message.bytes" in str(second)
    assert third["base_offset"] == 1
    assert "base_offset" not in fourth
    assert "max.message.bytes" not in str(fourth)

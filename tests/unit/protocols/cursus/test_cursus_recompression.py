"""Large batches for a topic that compresses them are compressed on a lane, in their order."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cursus_world import Client, CursusBroker, Message, batch, frame, numbered

from pentalog.model.types import Appended, Partition
from pentalog.protocols.cursus.gaps import PATIENCE_MS
from pentalog.protocols.cursus.opening import LANE

AT = Partition("orders", 0)
LARGE = b"0123456789abcdef" * 20_000
SMALL = batch([Message(b"small")], acks="-1")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CursusBroker]:
    opened = CursusBroker(tmp_path)
    client = opened.connect()
    client.text("CREATE topic=orders partitions=1")
    client.text("CREATE topic=events partitions=1 event_sourcing=true")
    for topic in ("orders", "events"):
        opened.topics.configure(topic, {"compression.type": "gzip"})
    yield opened
    opened.close()


def answers(world: CursusBroker, client: Client, count: int) -> list[bytes]:
    found: list[bytes] = []
    for _ in range(50):
        world.step()
        client.feed(b"")
        found += client.frames()
    assert len(found) == count
    return found


@pytest.mark.parametrize(
    "large",
    [
        batch([Message(LARGE)], acks="-1"),
        batch([Message(LARGE)] * 10, acks="-1"),
        b"PUBLISH topic=orders partition=0 producerId=p acks=-1 message=" + LARGE,
        b"PUBLISH topic=orders partition=0 producerId=p acks=-1 message=" + LARGE * 4,
    ],
    ids=["batch", "parts", "text", "long text"],
)
def test_large_batches_are_compressed_on_a_lane(world: CursusBroker, large: bytes) -> None:
    client = world.connect()
    world.runtime.held_lanes.add("open")
    client.feed(frame(large) + frame(SMALL))
    for _ in range(50):
        world.step()
        client.feed(b"")
    assert world.log.marks(AT).end == 0
    assert client.frames() == []
    world.runtime.held_lanes.clear()
    first, second = answers(world, client, 2)
    end = json.loads(first)["last_offset"] + 1
    assert json.loads(second)["last_offset"] == end
    assert world.log.size_bytes(AT) < len(LARGE) // 4
    assert client.session.door.workroom._used_bytes == 0


def test_transactional_messages_too(world: CursusBroker) -> None:
    client = world.connect()
    made = client.text("INIT_PRODUCER_ID transactional_id=t")
    found = re.search(r"producerId=(\S+) epoch=(\d+)", made)
    assert found is not None
    who = f"transactional_id=t producerId={found[1]} epoch={found[2]}"
    client.text(f"BEGIN_TXN {who}")
    world.runtime.held_lanes.add("open")
    client.feed(
        frame(f"TXN_PUBLISH {who} topic=orders partition=0 seqNum=1 message=".encode() + LARGE)
        + frame(f"TXN_PUBLISH {who} topic=orders partition=0 seqNum=2 message=b".encode())
    )
    for _ in range(20):
        world.step()
        client.feed(b"")
    assert world.log.marks(AT).end == 0
    world.runtime.held_lanes.clear()
    first, second = answers(world, client, 2)
    assert b"staged_messages=1" in first
    assert b"staged_messages=2" in second
    assert world.log.marks(AT).end == 2


def test_events_too(world: CursusBroker) -> None:
    client = world.connect()
    world.runtime.held_lanes.add("open")
    client.feed(
        frame(b"APPEND_STREAM topic=events key=k version=1 message=" + LARGE)
        + frame(b"APPEND_STREAM topic=events key=k version=2 message=x")
    )
    for _ in range(20):
        world.step()
        client.feed(b"")
    assert world.log.marks(Partition("events", 0)).end == 0
    world.runtime.held_lanes.clear()
    first, second = answers(world, client, 2)
    assert first.startswith(b"OK version=1 offset=0")
    assert second.startswith(b"OK version=2 offset=1")


def test_a_large_batch_of_which_a_part_is_refused_leaves_nothing(world: CursusBroker) -> None:
    world.topics.configure("orders", {"cleanup.policy": "compact"})
    keyed = [Message(LARGE, key=b"k")] * 8
    answer = world.connect().publish(batch([*keyed, Message(b"no key")], acks="-1"))
    assert answer["status"] == "ERROR"
    assert world.log.marks(AT).end == 0


@pytest.mark.parametrize("count", [1, 20], ids=["batch", "parts"])
def test_messages_that_follow_those_on_a_lane_are_kept_until_they_are_stored(
    world: CursusBroker, count: int
) -> None:
    first, second, third = (world.connect() for _ in range(3))
    world.runtime.held_lanes.add("open")
    sent = frame(numbered(*range(1, count + 1), payload=LARGE))
    first.feed(sent)
    for _ in range(50):
        world.step()
        first.feed(b"")
    second.feed(frame(numbered(count + 1)))
    third.feed(sent)
    world.advance(3 * PATIENCE_MS)
    assert [*second.frames(), *third.frames()] == []
    world.runtime.held_lanes.clear()
    last = [json.loads(*answers(world, each, 1))["last_offset"] for each in (first, second, third)]
    assert last == [count - 1, count, count - 1]
    assert world.log.marks(AT).end == count + 1


def test_messages_that_follow_a_compressed_frame_on_a_lane_are_kept_until_it_is_stored(
    world: CursusBroker,
) -> None:
    first, second = world.connect(), world.connect()
    world.runtime.held_lanes.add(LANE)
    first.feed(frame(gzip.compress(numbered(1, payload=LARGE))))
    second.feed(frame(numbered(2)))
    world.advance(3 * PATIENCE_MS)
    assert second.frames() == []
    world.runtime.held_lanes.clear()
    last = [json.loads(*answers(world, each, 1))["last_offset"] for each in (first, second)]
    assert last == [0, 1]
    third = world.connect()
    third.feed(frame(numbered(5)))
    world.advance(PATIENCE_MS)
    assert "gap" in json.loads(*answers(world, third, 1))["error"], "nothing is being opened"


def test_messages_that_follow_refused_ones_are_refused_in_time(world: CursusBroker) -> None:
    world.topics.configure("orders", {"cleanup.policy": "compact"})
    first, second = world.connect(), world.connect()
    world.runtime.held_lanes.add("open")
    first.feed(frame(numbered(1, payload=LARGE)))
    second.feed(frame(numbered(2)))
    world.runtime.held_lanes.clear()
    assert "key" in json.loads(*answers(world, first, 1))["error"]
    world.advance(PATIENCE_MS)
    assert "must have seqNum 1" in json.loads(*answers(world, second, 1))["error"]


def test_a_large_frame_whose_connection_is_closed_keeps_nothing_waiting(
    world: CursusBroker,
) -> None:
    first, second = world.connect(), world.connect()
    first.feed(frame(numbered(*range(1, 21), payload=LARGE)))
    first.session.close()
    second.feed(frame(numbered(1)))
    world.advance(2 * PATIENCE_MS)
    assert json.loads(*answers(world, second, 1))["last_offset"] == 0


def test_a_topic_that_is_created_again_does_not_get_the_rest_of_a_large_frame(
    world: CursusBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = world.connect(), world.connect()
    append, parts = world.log.append, 0

    def append_part(*arguments: Any, **options: Any) -> Appended:
        nonlocal parts
        parts += 1
        appended = append(*arguments, **options)
        if parts == 1:  # as another client may do between two turns
            other.text("DELETE topic=orders")
            other.text("CREATE topic=orders partitions=1")
        return appended

    monkeypatch.setattr(world.log, "append", append_part)
    client.feed(frame(batch([Message(LARGE)] * 20, acks="-1")))
    (answer,) = answers(world, client, 1)
    assert parts == 1
    assert "error" in json.loads(answer)
    assert world.log.marks(AT).end == 0

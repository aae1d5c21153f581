"""Large frames: stored in parts, opened aside, with memory that all connections share."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cursus_world import CursusBroker, Message, batch, frame, messages_of

from pentalog.model import compression
from pentalog.model.types import Partition
from pentalog.protocols.cursus import storing
from pentalog.protocols.cursus.workroom import Workroom

AT = Partition("orders", 0)
NOISE = random.Random(1).randbytes(1_400_000)
SIZES = [10, 70_000, 3, 900_000, 0, 65_000, 1_300_000, 5, 5]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CursusBroker]:
    opened = CursusBroker(tmp_path)
    opened.connect().text("CREATE topic=orders partitions=2")
    yield opened
    opened.close()


def large(*, producer: bytes = b"", first: int = 1) -> bytes:
    messages = [
        Message(
            NOISE[number : number + size], seq=first + number if producer else 0, producer=producer
        )
        for number, size in enumerate(SIZES)
    ]
    return batch(messages, idempotent=bool(producer), acks="-1")


def payloads(world: CursusBroker) -> list[bytes]:
    client, found = world.connect(), []
    while page := client.read(f"CONSUME topic=orders partition=0 offset={len(found)} member=m"):
        found += [message.payload for message in page]
    return found


@pytest.mark.parametrize("codec", range(5))
def test_a_large_batch_is_stored_in_parts(world: CursusBroker, codec: int) -> None:
    answer = world.connect().publish(compression.compress(codec, large()))
    assert (answer["status"], answer["last_offset"]) == ("OK", len(SIZES) - 1)
    assert payloads(world) == [message.payload for message in messages_of(large())]


def test_a_large_batch_that_is_repeated_is_stored_once(world: CursusBroker) -> None:
    client = world.connect()
    last = len(SIZES) - 1
    assert client.publish(large(producer=b"p"))["last_offset"] == last
    assert client.publish(large(producer=b"p"))["last_offset"] == last
    overlapping = client.publish(large(producer=b"p", first=4))
    assert (overlapping["status"], overlapping["last_offset"]) == ("OK", last + 3)
    assert len(payloads(world)) == len(SIZES) + 3


def test_frames_wait_for_the_large_one_before_them(world: CursusBroker) -> None:
    client = world.connect()
    small = batch([Message(b"small")], acks="-1")
    client.feed(frame(large()) + frame(compression.compress(4, large())) + frame(small))
    answers: list[bytes] = []
    while len(answers) < 3:
        world.step()
        client.feed(b"")
        answers += client.frames()
    assert [json.loads(answer)["last_offset"] for answer in answers] == [8, 17, 18]
    assert payloads(world)[-1] == b"small"


def test_a_client_that_goes_before_all_is_read_leaves_nothing(world: CursusBroker) -> None:
    client = world.connect()
    client.feed(frame(large()))
    client.session.close()
    world.step()
    assert world.log.marks(AT).end == 0
    assert client.session.door.workroom._used_bytes == 0


def test_a_client_that_goes_later_leaves_all(world: CursusBroker) -> None:
    client = world.connect()
    client.feed(frame(compression.compress(4, large())))
    world.runtime.held_lanes.add("sync")
    while not world.log.marks(AT).end:
        world.step()
    client.session.close()
    world.step()
    assert world.log.marks(AT).end == len(SIZES)


def test_a_message_too_large_for_the_topic_refuses_all(world: CursusBroker) -> None:
    world.topics.configure("orders", {"max.message.bytes": "1200000"})
    answer = world.connect().publish(large())
    assert answer["status"] == "ERROR"
    assert "max.message.bytes accepts 1200000" in answer["error"]
    assert world.log.marks(AT).end == 0


def test_a_frame_that_holds_too_much_is_refused(world: CursusBroker) -> None:
    client = world.connect()
    bomb = compression.compress(compression.ZSTD, bytes(65 << 20))
    assert "once decompressed" in client.publish(bomb)["error"]
    assert client.text("HELP").startswith("OK")
    assert client.session.door.workroom._used_bytes == 0


def test_a_large_frame_without_room_waits_for_it(
    world: CursusBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.connect()
    room = client.session.door.workroom
    held = room.reserve("another", 250 << 20, lambda: None)
    monkeypatch.setattr(storing, "_COPIES", 10)
    client.feed(frame(large()))
    world.step()
    assert client.frames() == []
    held.release()
    client.feed(b"")
    while not (answers := client.frames()):
        world.step()
        client.feed(b"")
    assert json.loads(answers[0])["status"] == "OK"
    assert room._used_bytes == 0


def test_owners_get_memory_in_turns() -> None:
    room = Workroom(100)
    order: list[str] = []
    first = room.reserve("a", 100, lambda: order.append("a1"))
    waiting = {
        name: room.reserve(name[0], 100, lambda name=name: order.append(name))  # type: ignore[misc]
        for name in ("a2", "a3", "b1", "b2")
    }
    waiting["b1"].release()
    first.release()
    for name in ("a2", "b2", "a3"):
        assert order[-1] == name
        waiting[name].release()
    assert order == ["a1", "a2", "b2", "a3"]
    assert room.reserve("c", 1_000, lambda: None).granted, "more than there is, but alone"


def test_a_large_message_is_stored_without_blanks_around_it(world: CursusBroker) -> None:
    payload = b"a" + b" b" * (2 << 20)
    head = b"PUBLISH topic=orders partition=0 producerId=p acks=-1 message= \t"
    world.connect().ask(head + payload + b" \n")
    assert payloads(world) == [payload]

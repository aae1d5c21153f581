"""RustLog's clients are told a committed offset only when no power cut can take it back."""

from __future__ import annotations

import json
import struct

import pytest
from rustlog_world import (
    PING,
    RustLogConnection,
    RustLogWorld,
    commit,
    committed,
    create,
    failure,
    fetch,
    fetched,
    produce,
    text,
)
from tests.support.state_files import accept_writes, refuse_writes

from pentalog.broker.state import RETRY_MS

pytestmark = pytest.mark.local_engine("a cluster decides itself when an offset is visible")

FETCH_FAILED, FAILED, STORAGE = 4, 500, 503


@pytest.fixture
def other(world: RustLogWorld, peer: RustLogConnection) -> RustLogConnection:
    """A second connection to a topic of three records, in which group g has committed 1."""
    peer.asks(create("demo", 1) + produce("demo", 0, b"0", b"1", b"2") + commit("g", "demo", 0, 1))
    return world.connect()


def offset_in(reply: bytes) -> int:
    found: int = struct.unpack(">Q", reply[-8:])[0]
    return found


def uncommitted(world: RustLogWorld, offset: int) -> None:
    """Commit on a connection of its own, while the state file is stuck."""
    world.disk.runtime.held_lanes.add("state")
    committing = world.connect()
    committing.feed(commit("g", "demo", 0, offset))
    committing.run()
    assert committing.line.waiting == 1


def answers(world: RustLogWorld, asking: RustLogConnection, data: bytes) -> list[bytes]:
    """The answers to these frames: none before the state file accepts writes again."""
    before = len(asking.line.frames())
    asking.feed(data)
    asking.run()
    assert len(asking.line.frames()) == before, "a power cut could bring 1 back"
    world.disk.runtime.release()
    asking.run()
    return asking.line.frames()[before:]


def test_the_committed_offset(world: RustLogWorld, other: RustLogConnection) -> None:
    assert offset_in(other.ask(committed("g", "demo", 0))) == 1
    uncommitted(world, 2)
    told, pong = answers(world, other, committed("g", "demo", 0) + PING)
    assert offset_in(told) == 2
    assert pong == other.ask(PING)


def test_the_committed_offset_in_json(world: RustLogWorld, other: RustLogConnection) -> None:
    uncommitted(world, 2)
    asked = text(type="OffsetFetch", group="g", topic="demo", partition=0)
    (told,) = answers(world, other, asked)
    assert json.loads(told)["offset"] == 2


def test_a_fetch_of_a_group(world: RustLogWorld, other: RustLogConnection) -> None:
    assert fetched(other.ask(fetch("demo", 0, 0, group="g"))) == ([b"1", b"2"], 3)
    uncommitted(world, 2)
    told, pong = answers(world, other, fetch("demo", 0, 0, group="g") + PING)
    assert fetched(told) == ([b"2"], 3)
    assert pong == other.ask(PING)


def test_what_needs_no_offset_of_the_group_is_answered_at_once(
    world: RustLogWorld, other: RustLogConnection
) -> None:
    uncommitted(world, 2)
    assert fetched(other.ask(fetch("demo", 0, 0))) == ([b"0", b"1", b"2"], 3)
    assert fetched(other.ask(fetch("demo", 0, 0, group="h")))[1] == 3


def test_a_connection_that_closes_before_its_answer(
    world: RustLogWorld, other: RustLogConnection
) -> None:
    uncommitted(world, 2)
    other.feed(fetch("demo", 0, 0, group="g"))
    other.session.close()
    world.disk.runtime.release()
    other.run()


def test_a_file_that_cannot_be_written(world: RustLogWorld, other: RustLogConnection) -> None:
    refuse_writes(world.disk.state)
    world.connect().feed(commit("g", "demo", 0, 2))
    asked = {"group": "g", "topic": "demo", "partition": 0}
    assert failure(other.ask(committed("g", "demo", 0)))[0] == FAILED
    assert failure(other.ask(fetch("demo", 0, 0, group="g")))[0] == FETCH_FAILED
    assert other.say(type="OffsetFetch", **asked)["code"] == STORAGE
    accept_writes(world.disk.state)
    world.disk.runtime.advance(RETRY_MS)
    assert offset_in(other.ask(committed("g", "demo", 0))) == 2

"""Cursus' clients are told a committed offset only when no power cut can take it back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cursus_world import Client, CursusBroker, Message, batch, frame, messages_of
from tests.support.state_files import accept_writes, refuse_writes

from pentalog.broker.state import RETRY_MS
from pentalog.model.types import Partition

COMMIT = "COMMIT topic=orders partition=0 group=g offset="
FETCH_OFFSET = "FETCH_OFFSET topic=orders partition=0 group=g"
CONSUME = "CONSUME topic=orders partition=0 member=m group=g"
STREAM = "STREAM topic=orders partition=0 member=m group=g"


@pytest.fixture
def local(tmp_path: Path) -> Iterator[CursusBroker]:
    """With a topic of three records, in which group g has committed 1."""
    made = CursusBroker(tmp_path)
    client = made.connect()
    client.text("CREATE topic=orders partitions=1")
    client.publish(batch([Message(b"0"), Message(b"1"), Message(b"2")], acks="-1"))
    assert client.text(COMMIT + "1") == "OK"
    yield made
    made.close()


@pytest.fixture
def other(local: CursusBroker) -> Client:
    """A second connection, while the commit of 2 by another one is not durable."""
    local.runtime.held_lanes.add("state")
    committing = local.connect()
    committing.feed(frame((COMMIT + "2").encode()))
    local.step()
    assert committing.frames() == []
    return local.connect()


def answer(local: CursusBroker, client: Client, *commands: str) -> list[bytes]:
    """The answers: none before the state file accepts writes again."""
    client.feed(b"".join(frame(command.encode()) for command in commands))
    local.step()
    assert client.frames() == [], "a power cut could bring 1 back"
    local.runtime.held_lanes.clear()
    local.step()
    client.feed(b"")
    return client.frames()


def test_fetch_offset(local: CursusBroker, other: Client) -> None:
    assert answer(local, other, FETCH_OFFSET, "LIST")[0] == b"OK offset=2"


def test_consume_where_the_group_continues(local: CursusBroker, other: Client) -> None:
    told, offset = answer(local, other, CONSUME, FETCH_OFFSET)
    assert [message.payload for message in messages_of(told)] == [b"2"]
    assert offset == b"OK offset=2"


def test_stream_where_the_group_continues(local: CursusBroker, other: Client) -> None:
    (pushed,) = answer(local, other, STREAM)
    assert [message.payload for message in messages_of(pushed)] == [b"2"]


def test_a_commit_that_goes_back_names_a_durable_offset(local: CursusBroker, other: Client) -> None:
    (told,) = answer(local, other, COMMIT + "0")
    assert told.startswith(b"ERROR: offset_regression")
    assert b"current=2" in told


def test_a_group_that_was_forgotten(local: CursusBroker) -> None:
    local.runtime.held_lanes.add("state")
    local.groups.offsets.forget("g")
    (told,) = answer(local, local.connect(), FETCH_OFFSET)
    assert told == b"ERROR: group_not_found group=g"


def test_what_needs_no_offset_of_the_group_is_answered_at_once(other: Client) -> None:
    assert len(other.read(CONSUME + " offset=0")) == 3
    assert other.text("FETCH_OFFSET topic=orders partition=0 group=default-group") == "OK offset=0"


def test_a_commit_beyond_the_end_names_a_durable_end(local: CursusBroker) -> None:
    client = local.connect()
    local.runtime.held_lanes |= {"sync", "journal"}
    client.feed(frame(batch([Message(b"3")], acks="1")))
    client.frames()
    (told,) = answer(local, client, COMMIT + "9")
    assert told == b"ERROR: invalid_offset partition=0 offset=9 end=4"
    assert local.log.marks(Partition("orders", 0)).durable == 4


def test_a_file_that_cannot_be_written(local: CursusBroker) -> None:
    refuse_writes(local.state)
    client, committing = local.connect(), local.connect()
    committing.feed(frame((COMMIT + "2").encode()))
    local.step()
    for command in (FETCH_OFFSET, CONSUME, COMMIT + "0"):
        (told,) = client.ask(command)
        assert told.startswith(b"ERROR: broker_error"), command
    accept_writes(local.state)
    local.advance(RETRY_MS)
    assert client.text(FETCH_OFFSET) == "OK offset=2"

"""What `acks=1` acknowledged is in the answer to every later request, before any timer is due."""

from __future__ import annotations

import json

import pytest
from tests.support.cursus_world import Client, CursusBroker, Message, batch, frame, messages_of

from pentalog.model.types import Partition

READ = "topic=orders partition=0 member=m group=new"


@pytest.fixture
def other(broker: CursusBroker, client: Client) -> Client:
    """A second connection, after the first was answered for three records."""
    client.text("CREATE topic=orders partitions=1")
    acknowledged(broker, client, b"0", b"1", b"2")
    return broker.connect()


def acknowledged(broker: CursusBroker, client: Client, *values: bytes) -> None:
    """The local engine answers in the turn of the request: no commit has begun."""
    client.feed(frame(batch([Message(value) for value in values], acks="1")))
    answers = client.frames()
    if answers:
        marks = broker.log.marks(Partition("orders", 0))
        assert marks.durable < marks.end
    else:
        broker.step()
        answers = client.frames()
    assert json.loads(answers[0])["status"] == "OK"


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_consume(other: Client, isolation: str) -> None:
    found = other.read(f"CONSUME {READ} offset=0 isolation={isolation}")
    assert [message.payload for message in found] == [b"0", b"1", b"2"]


def test_consume_from_the_latest(broker: CursusBroker, client: Client, other: Client) -> None:
    """It begins after the acknowledged records and waits for the next one."""
    other.feed(frame(f"CONSUME {READ} autoOffsetReset=latest wait_ms=1000".encode()))
    broker.step()
    assert other.frames() == []
    client.publish(batch([Message(b"3")], acks="-1"))
    broker.step()
    (answer,) = other.frames()
    assert [message.payload for message in messages_of(answer)] == [b"3"]


def test_stream_from_the_latest(broker: CursusBroker, client: Client, other: Client) -> None:
    other.feed(frame(f"STREAM {READ} autoOffsetReset=latest".encode()) + frame(b"HELP"))
    broker.step()
    other.feed(b"")
    assert other.frames() == [], "requests after a STREAM are not answered"
    client.publish(batch([Message(b"3")], acks="-1"))
    broker.step()
    (pushed,) = other.frames()
    assert [message.payload for message in messages_of(pushed)] == [b"3"]


def test_a_connection_that_goes_before_its_stream_begins(
    broker: CursusBroker, other: Client
) -> None:
    other.feed(frame(f"STREAM {READ} autoOffsetReset=latest".encode()))
    other.session.close()
    broker.step()
    assert other.session.stream is None
    assert not other.session.door.streams


def test_listing_offsets(other: Client) -> None:
    assert other.text("LIST_OFFSETS topic=orders partition=0").endswith(
        "P0:earliest=0:latest=3:leo=3:hwm=3"
    )


def test_describing(other: Client) -> None:
    (partition,) = json.loads(other.text("DESCRIBE topic=orders"))["partitions"]
    assert (partition["leo"], partition["hwm"]) == (3, 3)

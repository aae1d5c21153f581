"""Many reads at once on one connection: in order, in turn, and bounded."""

from __future__ import annotations

import pytest
from tests.support.cursus_world import Client, CursusBroker, Message, batch, frame, messages_of

from pentalog.protocols.cursus.messages import HEAD_BYTES_MAX
from pentalog.protocols.cursus.reads import PENDING_MAX

CONSUME = b"CONSUME topic=orders partition=0 offset=%d member=m wait_ms=5000"


@pytest.fixture(autouse=True)
def topic(client: Client) -> None:
    client.text("CREATE topic=orders partitions=1")


def test_pages_are_made_only_while_there_is_room(broker: CursusBroker, client: Client) -> None:
    """Woken together, many waiting reads would fill the memory with their answers."""
    for _ in range(20):
        client.ask(CONSUME % 0)
    client.line.full = True
    broker.connect().publish(batch([Message(b"x" * 1000)] * 3, acks="-1"))
    broker.step()
    assert client.frames() == []
    client.line.drain()
    broker.step()
    answers = client.frames()
    assert [len(messages_of(answer)) for answer in answers] == [3] * 20


def test_a_read_that_waits_lets_others_go_on(broker: CursusBroker, client: Client) -> None:
    client.publish(batch([Message(b"there")], acks="-1"))
    client.feed(frame(CONSUME % 1) + frame(CONSUME % 0))
    broker.step()
    assert client.frames() == [], "in order: the first still waits"
    broker.advance(5_001)
    first, second = client.frames()
    assert (len(messages_of(first)), len(messages_of(second))) == (0, 1)


def test_one_read_too_many_is_refused(broker: CursusBroker, client: Client) -> None:
    for _ in range(PENDING_MAX + 5):
        client.feed(frame(CONSUME % 0))
    broker.advance(5_001)
    answers = client.frames()
    assert len(answers) == PENDING_MAX + 5
    refused = [answer for answer in answers if answer.startswith(b"ERROR: broker_error")]
    assert len(refused) == 5
    assert len(client.ask(CONSUME[:-14] % 0)) == 1, "and afterwards there is room again"


def test_commands_of_many_words_are_refused_unread(client: Client) -> None:
    (answer,) = client.ask(b"LIST " + b"a " * HEAD_BYTES_MAX)
    assert answer.startswith(b"ERROR: message_too_large max=1048576")
    long = b"PUBLISH topic=orders producerId=p message=" + b"a " * HEAD_BYTES_MAX
    (answer,) = client.ask(long)
    assert answer.startswith(b'{"status":"OK"')


@pytest.mark.parametrize("name", ["topic", "group", "member"])
def test_names_must_be_text(client: Client, name: str) -> None:
    words = {"topic": b"orders", "group": b"g", "member": b"m", name: b"\xff"}
    command = b" ".join(b"%b=%b" % (key.encode(), value) for key, value in words.items())
    (answer,) = client.ask(b"JOIN_GROUP " + command)
    assert answer == f'ERROR: malformed_input reason="{name} is not UTF-8"'.encode()

"""Many reads at once on one connection: in order, in turn, and bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.cursus_world import Client, CursusBroker, Message, batch, frame, messages_of

from pentalog.broker import opening
from pentalog.broker.port import Opened
from pentalog.model.batch import build_marker
from pentalog.model.later import Later
from pentalog.model.types import Ack, Partition
from pentalog.protocols.cursus.messages import HEAD_BYTES_MAX
from pentalog.protocols.cursus.reads import PENDING_MAX

CONSUME = b"CONSUME topic=orders partition=0 offset=%d member=m wait_ms=5000"


@pytest.fixture(autouse=True)
def topic(request: pytest.FixtureRequest) -> None:
    if "client" in request.fixturenames:
        request.getfixturevalue("client").text("CREATE topic=orders partitions=1")


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


def test_a_read_ends_with_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was to step over may be a whole partition."""
    monkeypatch.setattr(opening, "LOOKED_AT_MAX", 1)
    broker = CursusBroker(tmp_path)
    client = broker.connect()
    client.text("CREATE topic=hidden partitions=1")
    for _ in range(10):
        marker = build_marker(commit=True, producer_id=1, producer_epoch=0, timestamp_ms=1)
        appended = broker.log.append(Partition("hidden", 0), memoryview(marker))
        broker.log.settle(appended, Ack.DURABLE)
    broker.step()
    opened: list[int] = []
    open_batches = broker.log.open

    def open_noted(at: Partition, offset: int, **how: Any) -> Later[Opened]:
        opened.append(offset)
        return open_batches(at, offset, **how)

    monkeypatch.setattr(broker.log, "open", open_noted)
    client.feed(frame(b"CONSUME topic=hidden partition=0 offset=0 member=m"))
    assert opened == [0]
    client.session.close()
    broker.step()
    assert opened == [0]
    broker.close()

"""Conversations with the original, byte for byte: whole, and cut at every position."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.blipmq_world import BlipBroker, Connection
from tests.support.unsynced import leave_unsynced

from pentalog.broker import subscription_rows

HERE = Path(__file__).parent
DEMO = 2
"""The subscription of quality 1 to `demo` in the captured conversation."""


class Exchange(NamedTuple):
    title: str
    sent: bytes
    answer: bytes


def conversation(name: str) -> list[Exchange]:
    found: list[Exchange] = []
    title, sent = "", b""
    for line in (HERE / name).read_text().splitlines():
        if line.startswith("# "):
            title = line[2:]
        elif line.startswith("C "):
            sent = bytes.fromhex(line[2:])
        elif line.startswith("S"):
            found.append(Exchange(title, sent, bytes.fromhex(line[1:])))
    return found


ORIGINAL = conversation("original.txt")
DOCUMENT = conversation("documents.txt")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BlipBroker]:
    broker = BlipBroker(tmp_path)
    yield broker
    broker.stop()


def frame(kind: int, correlation: int, payload: bytes = b"") -> bytes:
    head = (9 + len(payload)).to_bytes(4, "big") + bytes((kind,))
    return head + correlation.to_bytes(8, "big") + payload


def poll(subscription: int, correlation: int) -> bytes:
    return frame(9, correlation, subscription.to_bytes(8, "big"))


def ack(subscription: int, tag: int) -> bytes:
    return frame(5, tag, subscription.to_bytes(8, "big"))


def publish(topic: bytes, message: bytes, qos: int, correlation: int = 4) -> bytes:
    return frame(3, correlation, bytes((qos,)) + len(topic).to_bytes(2, "big") + topic + message)


def replay(connection: Connection, exchanges: list[Exchange]) -> None:
    for exchange in exchanges:
        assert connection.ask(exchange.sent).hex() == exchange.answer.hex(), exchange.title


def test_the_original_was_captured_in_full() -> None:
    assert len(ORIGINAL) == 46
    assert ORIGINAL[-1].title == "ACK"


def test_exchanges_of_the_original(broker: BlipBroker) -> None:
    replay(broker.connect(), ORIGINAL)


def test_the_whole_conversation_at_once(broker: BlipBroker) -> None:
    sent = b"".join(exchange.sent for exchange in ORIGINAL)
    answers = b"".join(exchange.answer for exchange in ORIGINAL)
    assert broker.connect().ask(sent).hex() == answers.hex()


@pytest.mark.parametrize("exchanges", [ORIGINAL, DOCUMENT], ids=["original", "document"])
def test_cut_at_every_position(
    tmp_path: Path, exchanges: list[Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every exchange arrives byte by byte; nothing is answered before its last byte."""
    if exchanges is DOCUMENT:
        monkeypatch.setattr(subscription_rows, "FIRST_ID", 42)
    broker = BlipBroker(tmp_path)
    connection = broker.connect()
    for exchange in exchanges:
        for position in range(len(exchange.sent) - 1):
            connection.feed(exchange.sent[position : position + 1])
            assert connection.take() == b"", exchange.title
        assert connection.ask(exchange.sent[-1:]).hex() == exchange.answer.hex(), exchange.title
    broker.stop()


def play(broker: BlipBroker, script: str, cut: int) -> None:
    """Say all of it, each frame in two pieces if it is long enough for this cut."""
    connection = broker.connect()
    title, sent = "", b""
    for line in script.splitlines():
        kind, _, rest = line.partition(" ")
        match kind:
            case "#":
                title = f"{rest}, cut at {cut}"
            case "N":
                connection.session.close()
                connection = broker.connect()
            case "W":
                broker.runtime.advance(int(rest))
            case "C":
                sent = bytes.fromhex(rest)
            case "S" | "X":
                if 0 < cut < len(sent):
                    assert connection.ask(sent[:cut]) == b"", title
                    sent = sent[cut:]
                assert connection.ask(sent).hex() == rest.replace(" ", "").lower(), title
                assert connection.ended == (kind == "X"), title


@pytest.mark.parametrize("document", [False, True], ids=["original", "document"])
def test_every_exchange_cut_at_every_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, document: bool
) -> None:
    """The state each exchange was captured in is made anew for every cut."""
    leave_unsynced(monkeypatch)
    if document:
        monkeypatch.setattr(subscription_rows, "FIRST_ID", 42)
    names = ["documents.txt"] if document else ["original.txt", "afterwards.txt"]
    script = "\n".join((HERE / name).read_text() for name in names)
    sent = [line[2:] for line in script.splitlines() if line.startswith("C ")]
    template = tmp_path / "template"
    BlipBroker(template).stop()
    for cut in range(max(len(bytes.fromhex(text)) for text in sent)):
        shutil.copytree(template, tmp_path / f"{cut}")
        broker = BlipBroker(tmp_path / f"{cut}")
        play(broker, script, cut)
        broker.stop()


def test_samples_of_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_rows, "FIRST_ID", 42)
    broker = BlipBroker(tmp_path)
    replay(broker.connect(), DOCUMENT)
    broker.stop()


def test_redelivery_then_no_more(broker: BlipBroker) -> None:
    """A consumer that polls all the time and never answers sees it three times in a second."""
    connection = broker.connect()
    replay(connection, ORIGINAL)
    connection.ask(publish(b"demo", b"retry", 1))
    seen = []
    for step in range(150):
        answer = connection.ask(poll(DEMO, 1000 + step))
        if answer:
            seen.append((20 * step, answer))
        broker.runtime.advance(20)
    delivery = publish(b"demo", b"retry", 1, correlation=5)
    assert [answer for _, answer in seen] == [delivery] * 3
    times = [time_ms for time_ms, _ in seen]
    # The original was seen at 0, 122 and 520 ms; it looks every 200 ms, as we do.
    assert times[0] == 0
    assert 100 <= times[1] - times[0] <= 320
    assert 200 <= times[2] - times[1] <= 420


def test_late_acknowledgement_is_refused_and_delivered_again(broker: BlipBroker) -> None:
    connection = broker.connect()
    replay(connection, ORIGINAL)
    connection.ask(publish(b"demo", b"skipped", 1))
    connection.ask(poll(DEMO, 90) + ack(DEMO, 5))
    connection.ask(publish(b"demo", b"late", 1))
    delivery = publish(b"demo", b"late", 1, correlation=6)
    assert connection.ask(poll(DEMO, 91)) == delivery
    broker.runtime.advance(600)
    refused = "unknown subscription or delivery tag"
    nack = frame(
        6, 6, (404).to_bytes(2, "big") + len(refused).to_bytes(2, "big") + refused.encode()
    )
    assert connection.ask(ack(DEMO, 6)) == nack
    assert connection.ask(poll(DEMO, 94)) == delivery
    assert connection.ask(ack(DEMO, 6)) == b""


def test_published_before_any_subscription(broker: BlipBroker) -> None:
    connection = broker.client()
    connection.ask(publish(b"lonely", b"nobody", 1))
    answer = connection.ask(frame(4, 3, b"\x00\x06lonely\x01"))
    subscription = int.from_bytes(answer[-8:], "big")
    assert connection.ask(poll(subscription, 5)) == b""


def test_a_subscription_survives_its_connection(broker: BlipBroker) -> None:
    first = broker.connect()
    replay(first, ORIGINAL)
    first.ask(publish(b"demo", b"survive", 1))
    first.session.close()
    second = broker.client()
    assert second.ask(poll(DEMO, 5)) == publish(b"demo", b"survive", 1, correlation=5)
    assert second.ask(ack(DEMO, 5)) == b""


@pytest.mark.parametrize(
    "sent",
    ["00000000", "000000080700000000000000", "01000001", "000000090a0000000000000001"],
    ids=["length 0", "length 8", "length 16 MiB + 1", "unknown type"],
)
def test_errors_that_close(broker: BlipBroker, sent: str) -> None:
    connection = broker.client()
    assert connection.ask(frame(7, 1) + bytes.fromhex(sent)) == frame(8, 1)
    assert connection.ended

"""Batches that come before those they follow: kept a moment, then stored or refused."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cursus_world import Client, CursusBroker, frame, numbered

from pentalog.broker.security import Access, Principal
from pentalog.protocols.cursus import gaps
from pentalog.protocols.cursus.gaps import BATCHES_MAX, PATIENCE_MS

EVE = Principal("User", "eve")

CONSUME = "CONSUME topic=orders partition=0 offset=0 member=m"


@pytest.fixture(autouse=True)
def topic(client: Client) -> None:
    client.text("CREATE topic=orders partitions=2")


def sequence(client: Client) -> list[int]:
    """What is stored, by the numbers its producer gave."""
    return [message.seq for message in client.read(CONSUME)]


def errors(answers: Sequence[bytes]) -> list[str]:
    return [json.loads(answer).get("error", "") for answer in answers]


def last_offsets(answers: Sequence[bytes]) -> list[int]:
    return [json.loads(answer)["last_offset"] for answer in answers]


def test_on_one_connection(client: Client) -> None:
    for seqs in ((4, 5), (6,), (1, 2, 3)):
        client.feed(frame(numbered(*seqs)))
    client.broker.step()
    assert last_offsets(client.frames()) == [4, 5, 2]
    assert sequence(client) == [1, 2, 3, 4, 5, 6]


def test_on_several_connections(broker: CursusBroker, client: Client) -> None:
    early, late = broker.connect(), broker.connect()
    assert early.ask(numbered(3, 4)) == []
    broker.advance(PATIENCE_MS - 1)
    assert early.frames() == []
    assert last_offsets(late.ask(numbered(1, 2))) == [1]
    assert last_offsets(early.frames()) == [3]
    broker.advance(PATIENCE_MS)
    assert early.frames() == []
    assert sequence(client) == [1, 2, 3, 4]


def test_a_new_epoch_may_come_too_early_too(client: Client) -> None:
    client.publish(numbered(1, 2))
    assert client.ask(numbered(2, epoch=2)) == []
    assert last_offsets(client.ask(numbered(1, epoch=2))) == [3, 2]


def test_what_never_comes_is_told_as_it_is_at_last(broker: CursusBroker, client: Client) -> None:
    client.feed(frame(numbered(9)))
    assert last_offsets(broker.connect().ask(numbered(1, 2))) == [1]
    broker.advance(PATIENCE_MS - 1)
    assert client.frames() == []
    broker.advance(1)
    assert errors(client.frames()) == ["idempotency gap for producer p1: expected 3, got 9"]
    assert sequence(client) == [1, 2]


def test_of_what_is_kept_the_next_goes_on_and_the_rest_waits(client: Client) -> None:
    for seq in (7, 3, 5):
        client.feed(frame(numbered(seq)))
    client.feed(frame(numbered(1, 2)))
    client.broker.advance(PATIENCE_MS)
    answers = client.frames()
    gap = "idempotency gap for producer p1: expected 4, got "
    assert errors(answers) == [f"{gap}7", "", f"{gap}5", ""]
    assert sequence(client) == [1, 2, 3]


def test_a_gap_within_a_batch_and_an_old_epoch_are_refused_at_once(client: Client) -> None:
    client.publish(numbered(1, epoch=2))
    assert "expected 3, got 4" in errors(client.ask(numbered(2, 4, epoch=2)))[0]
    assert "stale_producer_epoch" in errors(client.ask(numbered(5)))[0]


def test_a_repeated_early_batch_is_stored_once(broker: CursusBroker, client: Client) -> None:
    early = broker.connect()
    early.feed(frame(numbered(2)) * 2)
    client.publish(numbered(1))
    assert last_offsets(early.frames()) == [1, 1]
    assert sequence(client) == [1, 2]


def test_only_so_many_are_kept(broker: CursusBroker, client: Client) -> None:
    early = broker.connect()
    early.feed(frame(numbered(9)) * BATCHES_MAX)
    broker.step()
    assert len(errors(client.ask(numbered(9)))) == 1
    early.session.close()
    broker.advance(PATIENCE_MS)
    assert client.ask(numbered(9)) == [], "there is room again"


def test_large_ones_are_not_kept(broker: CursusBroker, client: Client) -> None:
    large = numbered(9, payload=bytes(9 << 20))
    early = broker.connect()
    assert early.ask(large) == []
    assert len(client.ask(large)) == 1
    assert client.ask(numbered(9)) == [], "a small one still finds room"


def test_a_closed_connection_stores_nothing_more(broker: CursusBroker, client: Client) -> None:
    early = broker.connect()
    early.ask(numbered(2))
    early.session.close()
    client.publish(numbered(1))
    assert sequence(client) == [1]


def test_a_topic_deleted_meanwhile(broker: CursusBroker, client: Client) -> None:
    client.publish(numbered(1))
    early = broker.connect()
    assert early.ask(numbered(3)) == []
    client.text("DELETE topic=orders")
    broker.advance(PATIENCE_MS)
    assert len(errors(early.frames())) == 1


def test_published_as_text_nothing_is_kept(client: Client) -> None:
    publish = "PUBLISH topic=orders partition=0 producerId=p isIdempotent=true epoch=1"
    assert "first message" in client.text(f"{publish} seqNum=2 message=x")


@settings(deadline=None, max_examples=15)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=10),
    order=st.randoms(use_true_random=False),
    connections=st.integers(1, 3),
)
def test_any_order_is_put_right(sizes: list[int], order: object, connections: int) -> None:
    batches, first = [], 1
    for size in sizes:
        batches.append(numbered(*range(first, first + size)))
        first += size
    order.shuffle(batches)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as directory:
        broker = CursusBroker(Path(directory))
        peers = [broker.connect() for _ in range(connections)]
        peers[0].text("CREATE topic=orders partitions=1")
        for number, body in enumerate(batches):
            peers[number % connections].feed(frame(body))
        broker.step()
        answers = [answer for peer in peers for answer in peer.frames()]
        assert errors(answers) == [""] * len(batches)
        assert sequence(peers[0]) == list(range(1, first))
        broker.close()


@pytest.mark.parametrize(
    ("greedy", "modest"),
    [
        ([Access(host="10.0.0.1")], Access(host="10.0.0.2")),
        ([Access(who=EVE, host=f"10.0.0.{number}") for number in (1, 2)], Access(host="10.0.0.1")),
    ],
)
def test_one_client_does_not_take_all_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, greedy: list[Access], modest: Access
) -> None:
    monkeypatch.setattr(gaps, "BATCHES_TOTAL_MAX", 8)
    world = CursusBroker(tmp_path / "few")
    world.connect().text("CREATE topic=orders partitions=2")
    # A connection for each: answers that come later keep those after them waiting.
    early = [(world.connect(access), b"g%d" % number) for number in range(5) for access in greedy]
    kept = [client for client, name in early if client.ask(numbered(2, producer=name)) == []]
    assert len(kept) == 4, "half of all places"
    first, other = world.connect(modest), world.connect(modest)
    assert first.ask(numbered(2)) == []
    assert last_offsets(other.ask(numbered(1))) == [0]
    assert last_offsets(first.frames()) == [1]
    world.advance(PATIENCE_MS)
    assert all(errors(client.frames()) != [""] for client in kept)
    again = world.connect(greedy[0])
    assert again.ask(numbered(2, producer=b"again")) == []
    world.advance(PATIENCE_MS)
    world.close()

"""Transactions of Cursus clients that change gateways, and whose requests get lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_world import is_produce
from cursus_gateway import CursusGateway, GatewayClient, OtherGateway, opened_gateway

from pentalog.cluster import writing

CONSUME = "CONSUME topic=orders partition={} offset=0 member=m"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CursusGateway]:
    with opened_gateway(tmp_path) as made:
        yield made


@pytest.fixture
def other(world: CursusGateway) -> OtherGateway:
    return OtherGateway(world)


class Moving:
    """A transactional client that uses one gateway after another."""

    def __init__(self, client: GatewayClient) -> None:
        self.client = client
        answer = client.text("INIT_PRODUCER_ID transactional_id=tx")
        found = re.search(r"producerId=(\S+) epoch=(\d+)", answer)
        assert found is not None
        self.who = f"transactional_id=tx producerId={found[1]} epoch={found[2]}"

    def begin(self) -> None:
        assert self.client.text(f"BEGIN_TXN {self.who}").startswith("OK")

    def publish(self, seq: int, partition: int | None = None) -> str:
        place = "" if partition is None else f" partition={partition}"
        command = f"TXN_PUBLISH {self.who} topic=orders{place} seqNum={seq} message=m{seq}"
        answers = self.client.ask(b"\0\0" + command.encode())
        for _ in range(300):
            if answers:
                return answers[0].decode()
            self.client.broker.advance(100)
            answers = self.client.frames()
        raise AssertionError("no answer")

    def end(self) -> str:
        return self.client.text(f"END_TXN {self.who} result=commit")

    def committed(self) -> list[bytes]:
        return sorted(
            message.payload
            for index in range(4)
            for message in self.client.read(CONSUME.format(index))
        )


@pytest.mark.parametrize("asked", [None, -1, 2])
def test_a_repetition_is_recognised_at_another_gateway(
    world: CursusGateway, other: OtherGateway, asked: int | None
) -> None:
    tx = Moving(world.connect())
    tx.begin()
    tx.publish(1, asked)
    first = tx.publish(2, asked)
    tx.client = other.connect()
    again = tx.publish(2, asked)
    assert again.startswith("OK")
    assert again.rpartition(" ")[2] == first.rpartition(" ")[2]
    assert tx.publish(3, asked).startswith("OK")
    assert tx.end().startswith("OK")
    assert tx.committed() == [b"m1", b"m2", b"m3"]


@pytest.mark.parametrize("asked", [None, 2])
def test_a_transaction_returns_to_a_gateway(
    world: CursusGateway, other: OtherGateway, asked: int | None
) -> None:
    """What another gateway wrote meanwhile is neither written over nor written again."""
    tx = Moving(world.connect())
    tx.begin()
    for seq in range(1, 10):
        assert tx.publish(seq, asked).startswith("OK")
        tx.client = (world, other)[seq // 2 % 2].connect()
        assert tx.publish(seq, asked).startswith("OK")
    assert tx.end().startswith("OK")
    assert tx.committed() == [b"m%d" % seq for seq in range(1, 10)]


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_message_that_the_cluster_did_not_confirm_is_repeated(
    world: CursusGateway, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Whether it arrived, only the leader knows; it is written once."""
    monkeypatch.setattr(writing, "PATIENCE_MS", 500)
    tx = Moving(world.connect())
    tx.begin()
    tx.publish(1, 0)
    world.trouble = lambda request: lost if is_produce(request) and b"m2" in request else None
    assert tx.publish(2, 0).startswith("ERROR: broker_error")
    world.trouble = lambda request: None
    assert "staged_messages=2 " in tx.publish(2, 0)
    assert "staged_messages=3 " in tx.publish(3, 0)
    assert tx.end().startswith("OK")
    assert tx.committed() == [b"m1", b"m2", b"m3"]


def test_a_transaction_ends_where_it_was_not_begun(
    world: CursusGateway, other: OtherGateway
) -> None:
    here = world.connect()
    tx = Moving(here)
    tx.client = other.connect()
    tx.begin()
    tx.publish(1, 0)
    tx.client = here
    assert tx.end().startswith("OK transactional_id=tx state=committed")
    assert tx.committed() == [b"m1"]

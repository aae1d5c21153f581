"""A recorded conversation of the real client, replayed whole and cut at every position."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "protocols" / "fluvio"))

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "cluster"))

from fluvio_gateway import FluvioGateway
from fluvio_world import Client, FluvioBroker

RECORDED_MS = 0x6AF9FE40 * 1000
"""When the conversation took place: an answer tells it."""


class Exchange(NamedTuple):
    connection: str
    request: bytes
    answers: bytes


def conversation() -> list[Exchange]:
    found: list[Exchange] = []
    connection = ""
    for line in (Path(__file__).parent / "conversation.txt").read_text().splitlines():
        mark, _, rest = line.partition(" ")
        if mark == "@":
            connection = rest
        elif mark == ">":
            found.append(Exchange(connection, bytes.fromhex(rest), b""))
        elif mark in "<~":
            last = found[-1]
            found[-1] = last._replace(answers=last.answers + bytes.fromhex(rest))
    return found


CONVERSATION = conversation()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FluvioBroker]:
    made = FluvioBroker(tmp_path / "data")
    made.runtime.time_ms = RECORDED_MS
    yield made
    made.close()


class Replay:
    """The connections of the conversation, opened when they first say something."""

    def __init__(self, broker: FluvioBroker | FluvioGateway) -> None:
        self._broker = broker
        self._clients: dict[str, Client] = {}

    def say(self, exchange: Exchange, *cuts: int) -> bytes:
        """Send a request in pieces; returns what comes back."""
        client = self._clients.get(exchange.connection)
        if client is None:
            kind = exchange.connection.split()[0]
            client = self._broker.sc() if kind == "sc" else self._broker.spu()
            self._clients[exchange.connection] = client
        before = len(client.line.sent)
        for start, end in zip((0, *cuts), (*cuts, len(exchange.request)), strict=True):
            client.feed(exchange.request[start:end])
            client.run()
            if end < len(exchange.request):
                assert len(client.line.sent) == before, "answered before it was there"
        assert not client.line.hung_up
        return bytes(client.line.sent[before:])


def test_the_conversation_is_whole() -> None:
    assert len(CONVERSATION) == 24
    assert sum(bool(exchange.answers) for exchange in CONVERSATION) == 24


def test_the_real_clients_conversation(broker: FluvioBroker) -> None:
    replay = Replay(broker)
    for exchange in CONVERSATION:
        assert replay.say(exchange).hex() == exchange.answers.hex()


PARTITION = b"\0\x06demo-0\0\0\x13\x89"
"""The name of the conversation's one partition, and who leads it."""


DATED = (RECORDED_MS // 1000).to_bytes(8, "big")


def of_a_cluster(exchange: Exchange) -> bytes:
    """The same answers without what only the local engine knows: sizes, and when was committed."""
    out = bytearray(exchange.answers)
    position = out.find(PARTITION)
    while position >= 0:
        start = position + len(PARTITION)
        if out[position - 1 : position] == b"\x01" and out[position - 2 : position - 1] == b"\x01":
            out[start + 19 : start + 35] = bytes(16)
            out[start + 43 : start + 51] = bytes(8)
        else:
            out[start + 43 : start + 51] = (-2).to_bytes(8, "big", signed=True)
        position = out.find(PARTITION, start)
    if out.endswith(DATED):
        out[-8:] = bytes(8)
    return bytes(out)


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_the_same_in_front_of_a_cluster(tmp_path: Path, size: int) -> None:
    gateway = FluvioGateway(tmp_path / "data", owner=False)
    gateway.runtime.time_ms = RECORDED_MS
    replay = Replay(gateway)
    for exchange in CONVERSATION:
        cuts = range(size, len(exchange.request), size)
        assert replay.say(exchange, *cuts).hex() == of_a_cluster(exchange).hex()
    gateway.close()


def test_byte_for_byte(broker: FluvioBroker) -> None:
    replay = Replay(broker)
    for exchange in CONVERSATION:
        every = range(1, len(exchange.request))
        assert replay.say(exchange, *every).hex() == exchange.answers.hex()


@pytest.mark.parametrize("part", range(8))
def test_cut_at_every_position(tmp_path: Path, part: int) -> None:
    """Each run cuts every request once, somewhere else; together they cut everywhere."""
    longest = max(len(exchange.request) for exchange in CONVERSATION)
    for cut in range(1 + part, longest, 8):
        broker = FluvioBroker(tmp_path / f"{cut}")
        broker.runtime.time_ms = RECORDED_MS
        replay = Replay(broker)
        for exchange in CONVERSATION:
            cuts = (cut,) if cut < len(exchange.request) else ()
            assert replay.say(exchange, *cuts).hex() == exchange.answers.hex(), cut
        broker.close()


def test_pipelined(broker: FluvioBroker) -> None:
    """All requests of one connection at once: the answers are the same frames."""
    exchanges = [exchange for exchange in CONVERSATION if exchange.connection == "sc 1"][:6]
    client = broker.sc()
    client.feed(b"".join(exchange.request for exchange in exchanges))
    client.run()
    frames = sorted(client.frames())
    other = broker.sc()
    other.line.sent += b"".join(exchange.answers for exchange in exchanges)
    assert frames == sorted(other.frames())

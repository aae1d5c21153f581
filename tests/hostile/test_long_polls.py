"""Readers that wait for the same record: what wakes them all must not serve them in one turn."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hostile import cursus_wire
from tests.hostile.hostile_world import API_VERSIONS, ask, string
from tests.hostile.kafka_topics import create_topic
from tests.hostile.longest_turn import UNSYNCED, TimedBroker
from tests.hostile.test_batches import NOW_MS, produce
from tests.server.broker_process import answer, request

from pentalog.model import batch
from pentalog.model.types import Record

CONNECTIONS = 150
POLLS = 100
STREAMS = 1_500


def long_poll(topic: str, offset: int) -> bytes:
    """Fetch 8 of one partition, for a minute or until there is a record."""
    head = struct.pack(">iiiibii", -1, 60_000, 1, 1 << 30, 0, 0, -1)
    cursor = struct.pack(">iiqqi", 1, 0, offset, -1, 1 << 20)
    body = head + struct.pack(">i", 1) + string(topic) + cursor + struct.pack(">i", 0)
    return request(1, 8, 1, body)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TimedBroker]:
    with TimedBroker(tmp_path / "data", "cursus", arguments=UNSYNCED) as made:
        create_topic(made, "watched", 1)
        yield made


def let_pass(broker: TimedBroker, turns: int) -> None:
    """Return when the loop has had so many turns: what was sent before is served by then."""
    with broker.connect() as client:
        for _ in range(turns):
            ask(client, API_VERSIONS)


def write(broker: TimedBroker) -> None:
    # A signal begins what is measured: the broker sees it in one of its next turns.
    let_pass(broker, 20)
    with broker.connect() as client:
        client.sendall(produce("watched", batch.build([Record(b"v")], timestamp_ms=NOW_MS)))
        answer(client)


def test_fetches_that_wait_together(broker: TimedBroker) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(broker.connect()) for _ in range(CONNECTIONS)]
        offset = 0

        def wait() -> None:
            for client in clients:
                client.sendall(long_poll("watched", offset) * POLLS)
            let_pass(broker, 1_000)

        def wake() -> None:
            nonlocal offset
            offset += 1
            write(broker)
            for client in clients:
                for _ in range(POLLS):
                    answer(client)

        turn = broker.measure(wake, prepare=wait)
    assert turn.short, turn


def test_streams_of_cursus(broker: TimedBroker) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(broker.connect("cursus")) for _ in range(STREAMS)]
        for number, client in enumerate(clients):
            command = f"STREAM topic=watched partition=0 offset=0 group=g{number}"
            client.sendall(cursus_wire.frame(command.encode()))
        let_pass(broker, 1_000)

        def wake() -> None:
            write(broker)
            for client in clients:
                while len(cursus_wire.read_frame(client)) < len(b"watched"):
                    pass  # it says that it is alive

        turn = broker.measure(wake)
    assert turn.short, turn

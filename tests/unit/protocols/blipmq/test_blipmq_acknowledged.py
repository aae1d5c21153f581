"""Subscriptions and polls at the end of a log whose newest records are not durable yet."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.blipmq_world import BlipBroker, Connection

from pentalog.log.files import Handle, RealFiles
from pentalog.log.flusher import JOURNAL_LANE, SYNC_LANE
from pentalog.model import batch
from pentalog.model.types import Partition, Record

AT = Partition("demo", 0)


class RefusingFiles(RealFiles):
    broken = False

    def sync(self, file: Handle) -> None:
        if self.broken:
            raise OSError(errno.EIO, "injected", str(file.path))
        super().sync(file)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BlipBroker]:
    made = BlipBroker(tmp_path, files=RefusingFiles())
    made.topic("demo")
    yield made
    made.stop()


def write(broker: BlipBroker, value: bytes) -> None:
    """As `acks=1` of another protocol leaves it."""
    data = batch.build([Record(value)], timestamp_ms=broker.runtime.now_ms())
    broker.log.append(AT, memoryview(data))


def frame(kind: int, correlation: int, payload: bytes) -> bytes:
    head = (9 + len(payload)).to_bytes(4, "big") + bytes((kind,))
    return head + correlation.to_bytes(8, "big") + payload


def subscribe() -> bytes:
    return frame(4, 1, (4).to_bytes(2, "big") + b"demo\0")


def poll(subscription: int) -> bytes:
    return frame(9, 2, subscription.to_bytes(8, "big"))


def test_a_subscription_begins_at_a_durable_end(broker: BlipBroker) -> None:
    client = broker.client()
    write(broker, b"before")
    broker.runtime.held_lanes |= {JOURNAL_LANE, SYNC_LANE}
    client.feed(subscribe())
    broker.runtime.step()
    assert client.take() == b"", "a power cut could give its first offset to another record"
    broker.runtime.held_lanes.clear()
    broker.runtime.step()
    assert client.take()
    assert broker.log.marks(AT).durable == 1


def subscribed(client: Connection) -> int:
    """Its number, the last field of the answer."""
    return int.from_bytes(client.ask(subscribe())[-8:], "big")


def test_a_poll_sees_what_was_acknowledged(broker: BlipBroker) -> None:
    client = broker.client()
    number = subscribed(client)
    write(broker, b"after")
    assert b"after" in client.ask(poll(number))


def test_a_poll_of_a_partition_that_cannot_sync_is_answered_at_once(broker: BlipBroker) -> None:
    client = broker.client()
    number = subscribed(client)
    write(broker, b"lost")
    assert isinstance(broker.store.files, RefusingFiles)
    broker.store.files.broken = True
    pong = frame(8, 3, b"")
    for _ in range(2):
        # A poll that finds nothing is not answered, but the answer after it waits for it.
        assert client.ask(poll(number) + frame(7, 3, b"")) == pong
    broker.store.files.broken = False

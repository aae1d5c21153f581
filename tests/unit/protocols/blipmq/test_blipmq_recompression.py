"""Large messages for a topic that compresses them are compressed on a lane, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.blipmq_world import BlipBroker

from pentalog.model.types import Partition

AT = Partition("zipped", 0)
LARGE = b"0123456789abcdef" * 20_000
PING, PONG = 7, 8


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BlipBroker]:
    broker = BlipBroker(tmp_path)
    broker.topic("zipped", compression_type="gzip", max_message_bytes="1000000")
    yield broker
    broker.stop()


def frame(kind: int, correlation: int, payload: bytes = b"") -> bytes:
    head = (9 + len(payload)).to_bytes(4, "big") + bytes((kind,))
    return head + correlation.to_bytes(8, "big") + payload


def publish(message: bytes, qos: int = 1) -> bytes:
    return frame(3, 4, bytes((qos,)) + b"\0\x06zipped" + message)


def values(broker: BlipBroker) -> list[bytes | None]:
    return [record.value for _, record in broker.records(AT)]


@pytest.mark.parametrize("qos", [0, 1])
def test_large_messages_are_compressed_on_a_lane(broker: BlipBroker, qos: int) -> None:
    client = broker.client()
    broker.runtime.held_lanes.add("open")
    client.feed(publish(LARGE, qos) + frame(PING, 1) + publish(b"small", qos) + frame(PING, 2))
    broker.runtime.step()
    assert broker.log.marks(AT).end == 0
    assert client.take() == b""
    assert client.held
    broker.runtime.held_lanes.clear()
    for _ in range(4):
        broker.runtime.step()
        client.feed(b"")
    broker.runtime.step()
    assert client.take() == frame(PONG, 1) + frame(PONG, 2)
    assert broker.log.marks(AT).end == 2
    if qos:
        assert values(broker) == [LARGE, b"small"]
    assert broker.log.size_bytes(AT) < len(LARGE) // 4


def test_a_run_that_is_cut_keeps_its_order(broker: BlipBroker) -> None:
    broker.topics.configure("zipped", {"max.message.bytes": "100000"})
    client = broker.client()
    sent = [bytes((number,)) * 60_000 for number in range(5)]
    broker.runtime.held_lanes.add("open")
    client.feed(b"".join(map(publish, sent)))
    broker.runtime.step()
    broker.runtime.held_lanes.clear()
    for _ in range(8):
        broker.runtime.step()
        client.feed(b"")
    assert values(broker) == sent


def test_what_the_topic_refuses_is_answered_in_its_place(broker: BlipBroker) -> None:
    broker.topics.configure("zipped", {"cleanup.policy": "compact"})
    client = broker.client()
    answer = client.ask(publish(LARGE) + frame(PING, 1))
    assert answer[4] == 6  # NACK
    assert b"publish failed" in answer
    broker.runtime.step()
    client.feed(b"")
    broker.runtime.step()
    assert client.take() == frame(PONG, 1) or answer.endswith(frame(PONG, 1))
    assert values(broker) == []


def test_a_large_message_before_bytes_that_are_no_frame_is_published(broker: BlipBroker) -> None:
    broker.topic("large", max_message_bytes="16000000")
    client = broker.client()
    message = bytes(5 << 20)
    client.feed(frame(3, 4, b"\1\0\5large" + message) + frame(99, 5))
    for _ in range(4):
        broker.runtime.step()
        client.feed(b"")
    assert [record.value for _, record in broker.records(Partition("large", 0))] == [message]
    assert client.ended

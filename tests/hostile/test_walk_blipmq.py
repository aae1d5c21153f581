"""Every frame of BlipMQ, with its largest legal and its first illegal form.

A frame is small or one message, so what is large here is how many of them come at once.  No turn of
the broker's loop may take longer than 20 ms of CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from tests.hostile.blipmq_wire import (
    BlipmqClient,
    ack,
    auth,
    frame,
    hello,
    poll,
    publish,
    subscribe,
)
from tests.hostile.kafka_topics import create_topic, delete_topic
from tests.hostile.longest_turn import UNSYNCED, TimedBroker
from tests.hostile.rustlog_wire import RustLogClient, produce

from pentalog.protocols.blipmq.frames import FRAME_BYTES_MAX, FrameType

MANY = 40_000
"""Small frames that arrive together: about 1 MB, what one turn reads."""
LONGEST_NAME = "n" * 60_000
LARGEST = FRAME_BYTES_MAX - 100


class Row(NamedTuple):
    """What is sent, given the number of a subscription, and what each answer before a PONG is."""

    legal: Callable[[int], bytes]
    legal_answers: set[int]
    illegal: Callable[[int], bytes]
    illegal_answers: set[int]


NACK = int(FrameType.NACK)
ACK = int(FrameType.ACK)
ROWS: dict[FrameType, Row] = {
    FrameType.HELLO: Row(
        lambda _: frame(FrameType.HELLO, 1, b"\0\1"),
        {NACK},  # it has been said: every further one is refused
        lambda _: frame(FrameType.HELLO, 1, bytes(LARGEST)),
        {NACK},
    ),
    FrameType.AUTH: Row(
        lambda _: auth("k" * 0xFFFF),
        {NACK},
        lambda _: frame(FrameType.AUTH, 1, b"\xff\xff" + bytes(LARGEST)),
        {NACK},
    ),
    FrameType.PUBLISH: Row(
        lambda _: publish("walk", bytes(LARGEST)),
        set(),
        lambda _: publish("", b"x") * MANY,
        {NACK},
    ),
    FrameType.SUBSCRIBE: Row(
        lambda _: subscribe("walk") * 500,
        {ACK},
        lambda _: subscribe("walk", qos=2) * 20_000,
        {NACK},
    ),
    FrameType.ACK: Row(
        lambda number: b"".join(ack(number, tag) for tag in range(1, MANY)),
        {NACK},  # for those that were acknowledged before
        lambda _: ack(1 << 60, 1) * MANY,
        {NACK},
    ),
    FrameType.NACK: Row(lambda _: frame(FrameType.NACK, 1) * MANY, set(), lambda _: b"", set()),
    FrameType.PING: Row(
        lambda _: frame(FrameType.PING, (1 << 64) - 1, bytes(LARGEST)),
        set(),
        lambda _: b"",
        set(),
    ),
    FrameType.PONG: Row(lambda _: frame(FrameType.PONG, 1) * MANY, set(), lambda _: b"", set()),
    FrameType.POLL: Row(
        lambda number: poll(number) * MANY,
        {int(FrameType.PUBLISH)},
        lambda _: poll(0) * MANY,
        {NACK},
    ),
}
"""A frame without a row fails the test."""
USES_MESSAGES = (FrameType.ACK, FrameType.POLL)
MESSAGES = b"".join(publish("walk", b"%d" % each) for each in range(MANY))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimedBroker]:
    data = tmp_path_factory.mktemp("walk") / "data"
    with TimedBroker(data, "blipmq", "rustlog", arguments=UNSYNCED) as broker:
        yield broker


def connect(broker: TimedBroker, key: str = "dev-key") -> BlipmqClient:
    return BlipmqClient(broker.connect("blipmq"), key)


def test_every_frame_has_a_row() -> None:
    assert set(ROWS) == set(FrameType)


@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("form", ["legal", "illegal"])
def test_no_turn_is_long(broker: TimedBroker, kind: FrameType, form: str) -> None:
    row = ROWS[kind]
    with connect(broker) as client:
        number = client.subscribe("walk")
        made, expected = (
            (row.legal, row.legal_answers)
            if form == "legal"
            else (row.illegal, row.illegal_answers)
        )
        sent = made(number)

        def prepare() -> None:
            nonlocal number, sent
            if kind not in USES_MESSAGES or form == "illegal":
                return
            number = client.subscribe("walk")
            client.fence(MESSAGES)
            if kind is FrameType.ACK:
                client.fence(poll(number) * MANY)
            sent = made(number)

        def ask() -> None:
            found = {answer for answer, _, _ in client.fence(sent)}
            assert found <= expected
            # A PONG to a PING of ours may be the first of two.
            client.fence()

        turn = broker.measure(ask, prepare)
        print(kind.name, form, turn)
        assert turn.short, turn


def test_before_login_frames_cost_little(broker: TimedBroker) -> None:
    def ask() -> None:
        with connect(broker, key="") as client:
            client.socket.sendall(hello() + poll(1) * MANY + publish("walk", b"x") * MANY)
            for _ in range(2 * MANY + 1):
                client.receive()

    turn = broker.measure(ask)
    print(turn)
    assert turn.short, turn


def test_large_frames_before_login_end_the_connection(broker: TimedBroker) -> None:
    def ask() -> None:
        with connect(broker, key="") as client:
            client.ask(hello())
            with pytest.raises((EOFError, ConnectionError)):
                client.ask(publish("walk", bytes(1 << 20)))

    turn = broker.measure(ask)
    print(turn)
    assert turn.short, turn


def test_a_large_message_may_come_together_with_the_login(broker: TimedBroker) -> None:
    with connect(broker, key="") as client:
        client.socket.sendall(hello() + auth("dev-key") + publish("walk", bytes(1 << 20)))
        assert [client.receive()[0] for _ in range(2)] == [ACK, ACK]
        assert client.fence() == []


def test_names_that_are_refused_cost_little(broker: TimedBroker) -> None:
    """Each refusal quotes the name."""
    too_long = publish(LONGEST_NAME, b"x") * 16 + publish("__consumer_offsets", b"x") * MANY

    def ask() -> None:
        with connect(broker) as client:
            client.fence(too_long)

    turn = broker.measure(ask)
    print(turn)
    assert turn.short, turn


@pytest.mark.parametrize(
    "made", [publish, lambda name, _: subscribe(name)], ids=["publish", "subscribe"]
)
def test_topics_that_are_made_because_they_are_named(
    broker: TimedBroker, made: Callable[[str, bytes], bytes]
) -> None:
    number = 0

    def ask() -> None:
        nonlocal number
        names = [f"named-{id(made)}-{number + each}" for each in range(60)]
        number += 60
        with connect(broker) as client:
            answers = client.fence(b"".join(made(name, b"x") for name in names))
            assert {kind for kind, _, _ in answers} <= {ACK}

    turn = broker.measure(ask)
    print(turn)
    assert turn.short, turn


def test_many_messages_that_are_too_large_for_their_topic(broker: TimedBroker) -> None:
    """Each is refused, since a batch is refused whole."""
    create_topic(broker, "narrow", 1, {"max.message.bytes": "10"})

    def ask() -> None:
        with connect(broker) as client:
            found = client.fence(publish("narrow", b"x") * MANY)
            assert [kind for kind, _, _ in found] == [NACK] * MANY

    turn = broker.measure(ask)
    print(turn)
    assert turn.short, turn


def test_subscriptions_to_very_many_partitions(broker: TimedBroker) -> None:
    """A poll must look at each partition, and another one is for another subscription."""
    create_topic(broker, "very-wide", 4_000)
    with connect(broker) as client:
        polls = b"".join(poll(client.subscribe("very-wide")) for _ in range(2)) * 20
        turn = broker.measure(lambda: client.fence(polls))
        print(turn)
        assert turn.short, turn
        number = 0

        def prepare() -> None:
            nonlocal number
            number = client.subscribe("very-wide")
            broadcast(broker, "very-wide", 4_000)

        turn = broker.measure(lambda: unacknowledged(client, number, 4_000), prepare)
        print(turn)
        assert turn.short, turn


def broadcast(broker: TimedBroker, topic: str, partitions: int) -> None:
    """Write a record to each partition, through the RustLog door."""
    with RustLogClient(broker.connect("rustlog")) as client:
        for first in range(0, partitions, 500):
            some = range(first, min(first + 500, partitions))
            client.socket.sendall(b"".join(produce(topic, index, [b"x"]) for index in some))
            assert {client.receive()[:1] for _ in some} == {b"\x01"}


def unacknowledged(client: BlipmqClient, number: int, count: int) -> None:
    """Poll everything; some of it is delivered again meanwhile."""
    found = 0
    while found < count:
        found += len(client.fence(poll(number) * count))


def test_a_topic_with_many_subscriptions_is_deleted(broker: TimedBroker) -> None:
    with connect(broker) as client:

        def crowd() -> None:
            for _ in range(6):
                client.fence(subscribe("crowded") * 500)

        turn = broker.measure(lambda: delete_topic(broker, "crowded"), crowd)
    print(turn)
    assert turn.short, turn

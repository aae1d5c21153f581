"""Every frame and every refusal of BlipMQ's protocol document, byte for byte, on a real broker.

The driver was written from the document alone, so a mistake that broker and shipped client share
shows here.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import blipmq_captured
import blipmq_socket as blipmq
import pytest
from blipmq_socket import Connection, Delivery, Frame
from captured import exchanges
from stage import Stage

pytestmark = pytest.mark.clients

UNKNOWN = "unknown subscription or delivery tag"
ZERO = "subscription_id must be non-zero"


@pytest.fixture
def stranger(blipmq_stage: Stage) -> Iterator[Connection]:
    """A connection on which nothing has been said."""
    with Connection(blipmq_stage.port) as connection:
        yield connection


@pytest.fixture
def connection(stranger: Connection) -> Connection:
    """A connection past the handshake."""
    stranger.open()
    return stranger


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic for this test alone."""
    name: str = "".join(c if c.isascii() and c.isalnum() else "-" for c in request.node.name)[:200]
    return name


def next_delivery(connection: Connection, subscription_id: int) -> Delivery:
    """Section "POLL": no frame if there is no message; poll again."""
    deadline = time.monotonic() + blipmq.DEADLINE_S
    while time.monotonic() < deadline:
        frames = connection.answers(blipmq.poll(900, subscription_id))
        if frames:
            (frame,) = frames
            return blipmq.read_delivery(frame)
        time.sleep(0.01)
    raise TimeoutError(f"nothing for subscription {subscription_id}")


def outlast_a_lease(connection: Connection, topic: str, subscription_id: int) -> None:
    """Publish a message and let its lease end: nothing but this message is delivered meanwhile."""
    assert connection.answers(blipmq.publish(6, topic, b"clock", 1)) == []
    first, again = (next_delivery(connection, subscription_id) for _ in range(2))
    assert first == again == Delivery(first.correlation_id, 1, topic, b"clock")


# The handshake


def test_the_captured_conversation(blipmq_stage: Stage) -> None:
    said = list(exchanges(blipmq_captured.CONVERSATION))
    assert len(said) == len(blipmq_stage.recorded)
    for exchange, answer in zip(said, blipmq_stage.recorded, strict=True):
        assert answer.hex() == exchange.answer.hex(), exchange.name


def test_the_sample_frames(stranger: Connection) -> None:
    """Section "Hex-Encoded Sample Frames": as printed, and as this driver writes them."""
    hello, auth, subscribe, publish = exchanges(blipmq_captured.SAMPLES)
    assert blipmq.hello(1).encode() == hello.request
    assert blipmq.auth(2, "dev-key").encode() == auth.request
    assert blipmq.subscribe(3, "demo", 1).encode() == subscribe.request
    assert blipmq.publish(4, "demo", b"hi", 1).encode() == publish.request
    for exchange in (hello, auth):
        stranger.send(exchange.request)
        assert stranger.receive().encode() == exchange.answer
    stranger.send(subscribe.request)
    accepted = stranger.receive()
    # The sample is of subscription 42; ours has another number, and nothing else differs.
    assert accepted.encode()[:-8] == subscribe.answer[:-8]
    subscription_id = blipmq.read_subscription(accepted)
    assert stranger.answers_to_bytes(publish.request) == []
    delivery = next_delivery(stranger, subscription_id)
    assert (delivery.qos, delivery.topic, delivery.message) == (1, "demo", b"hi")


@pytest.mark.parametrize("version", [0, 2, 0x0100, 0xFFFF])
def test_426_is_another_version(stranger: Connection, version: int) -> None:
    expected = blipmq.nack(1, 426, "unsupported protocol version")
    assert stranger.exchange(blipmq.hello(1, version)) == expected
    stranger.open()


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\1\0"])
def test_a_hello_that_is_none(stranger: Connection, payload: bytes) -> None:
    answer = stranger.exchange(Frame(blipmq.HELLO, 1, payload))
    assert answer == blipmq.nack(1, 400, "invalid HELLO payload")
    stranger.open()


def test_hello_comes_once(connection: Connection) -> None:
    expected = blipmq.nack(7, 400, "HELLO already performed")
    assert connection.exchange(blipmq.hello(7)) == expected


@pytest.mark.parametrize("payload", [b"\0\7dev-key", b"\0\5wrong", b"\0", b""])
def test_auth_comes_after_hello(stranger: Connection, payload: bytes) -> None:
    """Section "AUTH": this is looked at first."""
    answer = stranger.exchange(Frame(blipmq.AUTH, 2, payload))
    assert answer == blipmq.nack(2, 400, "HELLO not performed")
    stranger.open()


@pytest.mark.parametrize("payload", [b"\0\7dev-key", b"\0\5wrong", b"\0", b""])
def test_auth_comes_once(connection: Connection, payload: bytes) -> None:
    """Section "AUTH": this is looked at second."""
    answer = connection.exchange(Frame(blipmq.AUTH, 2, payload))
    assert answer == blipmq.nack(2, 400, "already authenticated")


@pytest.mark.parametrize(
    "payload", [b"", b"\0", b"\0\7", b"\0\7dev-ke", b"\0\7dev-keys", b"\0\2\xff\xfe"]
)
def test_an_auth_that_is_none(stranger: Connection, payload: bytes) -> None:
    assert stranger.exchange(blipmq.hello(1)) == blipmq.handshake_ack(1)
    answer = stranger.exchange(Frame(blipmq.AUTH, 2, payload))
    assert answer == blipmq.nack(2, 400, "invalid AUTH payload")
    assert stranger.exchange(blipmq.auth(3, "dev-key")) == blipmq.handshake_ack(3)


@pytest.mark.parametrize("key", ["", "wrong", "dev-ke", "dev-key2", "DEV-KEY", "ключ", "k" * 65535])
def test_401_is_a_wrong_key(stranger: Connection, key: str) -> None:
    assert stranger.exchange(blipmq.hello(1)) == blipmq.handshake_ack(1)
    assert stranger.exchange(blipmq.auth(2, key)) == blipmq.nack(2, 401, "invalid API key")
    assert stranger.exchange(blipmq.ping(3)) == blipmq.nack(3, 401, "unauthenticated")
    assert stranger.exchange(blipmq.auth(4, "dev-key")) == blipmq.handshake_ack(4)


@pytest.mark.parametrize("after_hello", [False, True])
@pytest.mark.parametrize(
    "request_frame",
    [
        blipmq.publish(4, "demo", b"hi", 1),
        blipmq.subscribe(4, "demo", 1),
        blipmq.ack(1, 4),
        blipmq.nack(4, 400, "empty topic"),
        blipmq.ping(4),
        blipmq.pong(4),
        blipmq.poll(4, 1),
        Frame(blipmq.PUBLISH, 4, b""),
    ],
    ids=lambda frame: f"{frame.kind:#04x}-{len(frame.payload)}",
)
def test_401_is_anything_before_auth(
    stranger: Connection, request_frame: Frame, after_hello: bool
) -> None:
    """Section "AUTH": non-HELLO/AUTH frames before auth complete."""
    if after_hello:
        assert stranger.exchange(blipmq.hello(1)) == blipmq.handshake_ack(1)
    assert stranger.exchange(request_frame) == blipmq.nack(4, 401, "unauthenticated")


# Frames


@pytest.mark.parametrize(
    "data", [exchange.request for exchange in exchanges(blipmq_captured.CLOSING)], ids=bytes.hex
)
@pytest.mark.parametrize("opened", [False, True])
def test_bad_frames_end_the_connection(stranger: Connection, data: bytes, opened: bool) -> None:
    """Sections "Frame Layout" and "Frame Types": closed, and nothing is said."""
    if opened:
        stranger.open()
    stranger.send(data)
    assert stranger.is_closed_by_broker()


@pytest.mark.parametrize("kind", [0x00, 0x0B, 0x7F, 0x80, 0xFF])
def test_unknown_types_end_the_connection(connection: Connection, kind: int) -> None:
    connection.send(Frame(kind, 1).encode())
    assert connection.is_closed_by_broker()


@pytest.mark.parametrize("length", [1, 8, blipmq.FRAME_BYTES_MAX + 1, 0xFFFF_FFFF])
def test_a_length_is_looked_at_alone(connection: Connection, length: int) -> None:
    connection.send(struct.pack(">I", length))
    assert connection.is_closed_by_broker()


def test_what_came_before_a_bad_frame_is_answered(connection: Connection) -> None:
    connection.send(blipmq.ping(5).encode() + bytes(4))
    assert connection.receive() == blipmq.pong(5)
    assert connection.is_closed_by_broker()


def test_a_frame_may_come_byte_by_byte(connection: Connection) -> None:
    for byte in blipmq.ping(6).encode():
        connection.send(bytes([byte]))
    assert connection.receive() == blipmq.pong(6)


@pytest.mark.parametrize("correlation_id", [0, 1, 2**63, 2**64 - 1])
def test_pong_has_the_id_of_its_ping(connection: Connection, correlation_id: int) -> None:
    assert connection.exchange(blipmq.ping(correlation_id)) == blipmq.pong(correlation_id)


@pytest.mark.parametrize("qos", [0, 1])
def test_the_largest_frame_comes_back(connection: Connection, topic: str, qos: int) -> None:
    subscription_id = connection.subscription(topic, 1)
    room = blipmq.FRAME_BYTES_MAX - blipmq.HEADER_COUNTED_BYTES - 3 - len(topic)
    message = b"m" * room
    assert connection.answers(blipmq.publish(4, topic, message, qos)) == []
    delivery = next_delivery(connection, subscription_id)
    assert (delivery.qos, delivery.topic) == (qos, topic)
    assert delivery.message == message


# PUBLISH, SUBSCRIBE, POLL


@pytest.mark.parametrize("subscribed", [0, 1])
@pytest.mark.parametrize("published", [0, 1])
def test_the_quality_of_a_delivery(
    connection: Connection, topic: str, subscribed: int, published: int
) -> None:
    """Section "PUBLISH", delivery; the lower of both, as the original does."""
    subscription_id = connection.subscription(topic, subscribed)
    assert connection.answers(blipmq.publish(4, topic, b"\0\xffm", published)) == []
    (frame,) = connection.answers(blipmq.poll(77, subscription_id))
    effective = min(subscribed, published)
    tag = frame.correlation_id
    assert frame == blipmq.publish(tag, topic, b"\0\xffm", effective)
    if effective:
        assert connection.answers(blipmq.ack(subscription_id, tag)) == []
        (frame,) = connection.answers(blipmq.ack(subscription_id, tag))
        assert frame == blipmq.nack(tag, 404, UNKNOWN)
    else:
        assert tag == 77


def test_messages_come_in_order_and_once(connection: Connection, topic: str) -> None:
    """Section "Client Responsibilities": several frames of both kinds at once."""
    subscription_id = connection.subscription(topic, 1)
    messages = [b"message %d" % number for number in range(300)]
    publishes = [blipmq.publish(number, topic, text, 1) for number, text in enumerate(messages)]
    assert connection.answers(*publishes) == []
    polls = [blipmq.poll(1000 + number, subscription_id) for number in range(310)]
    deliveries = [blipmq.read_delivery(frame) for frame in connection.answers(*polls)]
    assert [delivery.message for delivery in deliveries] == messages
    tags = [delivery.correlation_id for delivery in deliveries]
    assert len(set(tags)) == len(tags)
    assert connection.answers(*(blipmq.ack(subscription_id, tag) for tag in tags)) == []
    assert connection.answers(blipmq.poll(5, subscription_id)) == []


def test_everything_in_one_write(stranger: Connection, topic: str) -> None:
    """Section "Frame Layout": frames support pipelining, from the first one on."""
    frames = [
        blipmq.hello(1),
        blipmq.auth(2, "dev-key"),
        blipmq.subscribe(3, topic, 0),
        blipmq.publish(4, topic, b"", 7),
        blipmq.publish(5, topic, b"silent", 1),
        blipmq.poll(6, 0),
        blipmq.ping(7),
    ]
    stranger.send(b"".join(frame.encode() for frame in frames))
    answers = [stranger.receive() for _ in range(6)]
    assert answers[:2] == [blipmq.handshake_ack(1), blipmq.handshake_ack(2)]
    assert answers[2].correlation_id == 3
    subscription_id = blipmq.read_subscription(answers[2])
    assert answers[3:] == [
        blipmq.nack(4, 400, "invalid QoS value"),
        blipmq.nack(6, 400, ZERO),
        blipmq.pong(7),
    ]
    assert next_delivery(stranger, subscription_id) == Delivery(900, 0, topic, b"silent")


def test_an_empty_message(connection: Connection, topic: str) -> None:
    subscription_id = connection.subscription(topic, 1)
    assert connection.answers(blipmq.publish(4, topic, b"", 1)) == []
    assert next_delivery(connection, subscription_id).message == b""


def test_every_subscription_has_its_own_copy(connection: Connection, topic: str) -> None:
    ids = [connection.subscription(topic, 1) for _ in range(3)]
    assert len(set(ids)) == 3
    assert connection.answers(blipmq.publish(4, topic, b"copy", 1)) == []
    for subscription_id in ids:
        assert next_delivery(connection, subscription_id).message == b"copy"


def test_a_subscription_begins_empty(connection: Connection, topic: str) -> None:
    assert connection.answers(blipmq.publish(4, topic, b"early", 1)) == []
    subscription_id = connection.subscription(topic, 1)
    assert connection.answers(blipmq.poll(5, subscription_id)) == []
    assert connection.answers(blipmq.publish(6, topic, b"late", 1)) == []
    assert next_delivery(connection, subscription_id).message == b"late"


def test_a_subscription_outlives_its_connection(
    blipmq_stage: Stage, connection: Connection, topic: str
) -> None:
    """The original keeps it for whoever knows the id."""
    with Connection(blipmq_stage.port) as gone:
        gone.open()
        subscription_id = gone.subscription(topic, 1)
        assert gone.answers(blipmq.publish(4, topic, b"survive", 1)) == []
    delivery = next_delivery(connection, subscription_id)
    assert delivery.message == b"survive"
    assert connection.answers(blipmq.ack(subscription_id, delivery.correlation_id)) == []


@pytest.mark.parametrize("name", ["ü", "日本", "a b", "A.b-c_9", "n" * 249])
def test_topics_are_text(connection: Connection, name: str) -> None:
    """Section "PUBLISH": UTF-8 topic name."""
    subscription_id = connection.subscription(name, 1)
    assert connection.answers(blipmq.publish(4, name, b"m", 1)) == []
    delivery = next_delivery(connection, subscription_id)
    assert (delivery.topic, delivery.message) == (name, b"m")


@pytest.mark.parametrize("name", ["a/b", ".", "..", "a\nb", "\0", "n" * 250, "n" * 65535])
def test_topics_are_any_text(connection: Connection, name: str) -> None:
    """Section "PUBLISH": UTF-8 topic name, as long as two bytes can tell."""
    subscription_id = connection.subscription(name, 1)
    assert connection.answers(blipmq.publish(4, name, b"m", 1)) == []
    delivery = next_delivery(connection, subscription_id)
    assert (delivery.topic, delivery.message) == (name, b"m")


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "invalid PUBLISH payload"),
        (b"\0", "invalid PUBLISH payload"),
        (b"\0\0", "invalid PUBLISH payload"),
        (b"\0\0\5demo", "invalid PUBLISH payload"),
        (b"\0\0\2\xff\xfem", "invalid PUBLISH payload"),
        (b"\2\0\5demo", "invalid PUBLISH payload"),
        (b"\1\0\0m", "empty topic"),
        (b"\2\0\0", "empty topic"),
        (b"\2\0\4demom", "invalid QoS value"),
        (b"\xff\0\4demo", "invalid QoS value"),
    ],
)
def test_publishes_that_are_refused(connection: Connection, payload: bytes, message: str) -> None:
    """Section "PUBLISH", server behavior, in that order."""
    answers = connection.answers(Frame(blipmq.PUBLISH, 4, payload))
    assert answers == [blipmq.nack(4, 400, message)]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "invalid SUBSCRIBE payload"),
        (b"\0", "invalid SUBSCRIBE payload"),
        (b"\0\4demo", "invalid SUBSCRIBE payload"),
        (b"\0\5demo", "invalid SUBSCRIBE payload"),
        (b"\0\2\xff\xfe\1", "invalid SUBSCRIBE payload"),
        (b"\0\0\1", "empty topic"),
        (b"\0\0\2", "empty topic"),
        (b"\0\4demo\2", "invalid QoS value"),
        (b"\0\4demo\xff", "invalid QoS value"),
    ],
)
def test_subscribes_that_are_refused(connection: Connection, payload: bytes, message: str) -> None:
    """Section "SUBSCRIBE", server behavior."""
    answers = connection.answers(Frame(blipmq.SUBSCRIBE, 3, payload))
    assert answers == [blipmq.nack(3, 400, message)]


@pytest.mark.parametrize("kind", [blipmq.POLL, blipmq.ACK])
@pytest.mark.parametrize("size", [0, 1, 7, 9])
def test_polls_and_acks_that_are_none(connection: Connection, kind: int, size: int) -> None:
    name = {blipmq.POLL: "POLL", blipmq.ACK: "ACK"}[kind]
    answers = connection.answers(Frame(kind, 5, b"\0" * size))
    assert answers == [blipmq.nack(5, 400, f"invalid {name} payload")]
    assert connection.answers(Frame(kind, 5, bytes(8))) == [blipmq.nack(5, 400, ZERO)]


@pytest.mark.parametrize("subscription_id", [10_000_000, 2**63, 2**64 - 1])
def test_subscriptions_nobody_has(connection: Connection, subscription_id: int) -> None:
    """Section "ACK": 404.  A POLL of one is answered by silence, as by the original."""
    answers = connection.answers(blipmq.poll(5, subscription_id), blipmq.ack(subscription_id, 6))
    assert answers == [blipmq.nack(6, 404, UNKNOWN)]


@pytest.mark.parametrize("tag", [0, 2, 2**63, 2**64 - 1])
def test_404_is_a_tag_that_was_not_given(connection: Connection, topic: str, tag: int) -> None:
    subscription_id = connection.subscription(topic, 1)
    other = connection.subscription(topic, 1)
    assert connection.answers(blipmq.publish(4, topic, b"m", 1)) == []
    delivery = next_delivery(connection, subscription_id)
    assert delivery.correlation_id != tag
    given = delivery.correlation_id
    answers = connection.answers(blipmq.ack(subscription_id, tag), blipmq.ack(other, given))
    assert answers == [blipmq.nack(tag, 404, UNKNOWN), blipmq.nack(given, 404, UNKNOWN)]
    assert connection.answers(blipmq.ack(subscription_id, given)) == []


@pytest.mark.parametrize("kind", [blipmq.NACK, blipmq.PONG])
def test_frames_only_servers_send_are_ignored(connection: Connection, kind: int) -> None:
    assert connection.answers(Frame(kind, 4, b"anything")) == []


def test_500_is_a_publish_that_cannot_be_kept(
    blipmq_stage: Stage, connection: Connection, topic: str
) -> None:
    """Section "PUBLISH": on WAL error."""
    blipmq_stage.make_topic(topic, {"max.message.bytes": "1000"})
    (answer,) = connection.answers(blipmq.publish(4, topic, b"m" * 2000, 1))
    refusal = blipmq.read_refusal(answer)
    assert refusal.message.startswith("durable publish failed: ")
    assert (refusal.correlation_id, refusal.code) == (4, 500)


def test_a_refused_publish_is_not_delivered(
    blipmq_stage: Stage, connection: Connection, topic: str
) -> None:
    blipmq_stage.make_topic(topic, {"max.message.bytes": "1000"})
    subscription_id = connection.subscription(topic, 1)
    (answer,) = connection.answers(
        blipmq.publish(4, topic, b"m" * 2000, 1), blipmq.publish(5, topic, b"small", 1)
    )
    refusal = blipmq.read_refusal(answer)
    assert (refusal.correlation_id, refusal.code) == (4, 500)
    assert next_delivery(connection, subscription_id).message == b"small"
    assert connection.answers(blipmq.poll(5, subscription_id)) == []


# Redelivery


def test_what_is_not_acknowledged_comes_again(
    blipmq_stage: Stage, connection: Connection, topic: str
) -> None:
    """At least once: the same message with the same tag, behind what is waiting, until ACK."""
    settings = {"subscription.lease.ms": "100", "subscription.attempts.max": "1000000"}
    blipmq_stage.make_topic(topic, settings)
    subscription_id = connection.subscription(topic, 1)
    assert connection.answers(blipmq.publish(4, topic, b"retry", 1)) == []
    first = next_delivery(connection, subscription_id)
    assert first == Delivery(first.correlation_id, 1, topic, b"retry")
    for _ in range(2):
        assert next_delivery(connection, subscription_id) == first
    # An ACK may come too late, when the message is waiting again: refused, and delivered again.
    acknowledgement = blipmq.ack(subscription_id, first.correlation_id)
    deadline = time.monotonic() + blipmq.DEADLINE_S
    while answers := connection.answers(acknowledgement):
        assert answers == [blipmq.nack(first.correlation_id, 404, UNKNOWN)]
        assert next_delivery(connection, subscription_id) == first
        assert time.monotonic() < deadline
    outlast_a_lease(connection, topic, subscription_id)


def test_a_late_ack_is_refused_or_final(
    blipmq_stage: Stage, connection: Connection, topic: str
) -> None:
    """Section "ACK": success removes the message; 404 does not."""
    settings = {"subscription.lease.ms": "100", "subscription.attempts.max": "1000000"}
    blipmq_stage.make_topic(topic, settings)
    subscription_id = connection.subscription(topic, 1)
    assert connection.answers(blipmq.publish(4, topic, b"late", 1)) == []
    delivery = next_delivery(connection, subscription_id)
    blipmq_stage.make_topic(f"{topic}-clock", settings)
    outlast_a_lease(connection, f"{topic}-clock", connection.subscription(f"{topic}-clock", 1))
    answers = connection.answers(blipmq.ack(subscription_id, delivery.correlation_id))
    if answers:
        assert answers == [blipmq.nack(delivery.correlation_id, 404, UNKNOWN)]
        assert next_delivery(connection, subscription_id) == delivery
    else:
        outlast_a_lease(connection, topic, subscription_id)

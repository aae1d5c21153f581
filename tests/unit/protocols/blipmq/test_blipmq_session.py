"""One BlipMQ connection, driven by hand: order, fences, limits, refusals."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.blipmq_world import AUTH, HELLO, BlipBroker, Connection
from tests.support.logs import crooked, plant
from tests.support.runtimes import SteppedRuntime

from pentalog.broker.attempts import LocalAttempts
from pentalog.broker.log import COMMIT_WAIT_MS_MAX
from pentalog.config import Config, Secrets, load, plain
from pentalog.log.files import Handle, RealFiles
from pentalog.model.types import Partition, Record
from pentalog.protocols.blipmq import keys

sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))

from blipmq_gateway import BlipFleet

ENGINES = {"local": (), "owner": ("one",), "gateway": ("one", "two")}
"""On its own files; at the gateway that keeps the subscriptions, and at another."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "broker" in metafunc.fixturenames:
        local = metafunc.definition.get_closest_marker("local_engine") is not None
        metafunc.parametrize("broker", ["local"] if local else list(ENGINES), indirect=True)


@pytest.fixture
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlipBroker | BlipFleet]:
    names = ENGINES[request.param]
    broker = BlipFleet(tmp_path, *names) if names else BlipBroker(tmp_path)
    yield broker
    broker.stop()


def frame(kind: int, correlation: int, payload: bytes = b"") -> bytes:
    head = (9 + len(payload)).to_bytes(4, "big") + bytes((kind,))
    return head + correlation.to_bytes(8, "big") + payload


def publish(message: bytes, *, topic: bytes = b"demo", qos: int = 1, correlation: int = 4) -> bytes:
    return frame(3, correlation, bytes((qos,)) + len(topic).to_bytes(2, "big") + topic + message)


def poll(subscription: int, correlation: int = 9) -> bytes:
    return frame(9, correlation, subscription.to_bytes(8, "big"))


def ack(subscription: int, tag: int) -> bytes:
    return frame(5, tag, subscription.to_bytes(8, "big"))


def nack(correlation: int, code: int, text: str) -> bytes:
    body = code.to_bytes(2, "big") + len(text.encode()).to_bytes(2, "big") + text.encode()
    return frame(6, correlation, body)


def subscribe(connection: Connection, topic: bytes = b"demo", qos: int = 1) -> int:
    answer = connection.ask(frame(4, 3, len(topic).to_bytes(2, "big") + topic + bytes((qos,))))
    assert answer[4] == 5
    return int.from_bytes(answer[-8:], "big")


def frames_of(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        found.append(data[:size])
        data = data[size:]
    return found


class UnsyncedFiles(RealFiles):
    """A disk that says nothing until it is told to."""

    def __init__(self) -> None:
        self.failing = False

    def write_synced(
        self, file: Handle, data: bytes | bytearray | memoryview, position: int
    ) -> None:
        if self.failing:
            raise OSError(5, "injected", str(file.path))
        super().write_synced(file, data, position)

    def sync(self, file: Handle) -> None:
        if self.failing:
            raise OSError(5, "injected", str(file.path))
        super().sync(file)


class Held(SteppedRuntime):
    """Threads whose work waits until it is let go."""

    def offload(self, lane: str, work: Any, done: Any) -> None:
        super().offload(lane if lane == "state" else "held", work, done)


def test_a_pong_is_a_fence_for_durability(tmp_path: Path) -> None:
    runtime = Held()
    broker = BlipBroker(tmp_path, runtime=runtime)
    connection = broker.client()
    assert connection.ask(publish(b"x", qos=0) + frame(7, 1)) == frame(8, 1)
    runtime.held_lanes.add("held")
    assert connection.ask(publish(b"x", qos=1) + frame(7, 2)) == b""
    assert connection.ask(frame(4, 3, b"\x00\x04demo\x01")) == b""
    runtime.held_lanes.clear()
    runtime.step()
    answers = frames_of(connection.take())
    assert [answer[4] for answer in answers] == [8, 5]
    broker.stop()


def test_a_publish_that_does_not_reach_the_disk_is_refused(tmp_path: Path) -> None:
    files = UnsyncedFiles()
    broker = BlipBroker(tmp_path, files=files)
    connection = broker.client()
    connection.ask(publish(b"x"))
    files.failing = True
    answers = frames_of(connection.ask(publish(b"a", correlation=5) + frame(7, 6)))
    assert [(answer[4], answer[12]) for answer in answers] == [(6, 5), (8, 6)]
    assert int.from_bytes(answers[0][13:15], "big") == 500
    assert answers[0][17:].startswith(b"durable publish failed: ")
    files.failing = False
    broker.crash()


def test_polls_wait_for_what_is_being_written(broker: BlipBroker) -> None:
    connection = broker.client()
    subscription = subscribe(connection)
    many = [publish(b"%d" % number, qos=number % 2) for number in range(50)]
    sent = b"".join(many) + poll(subscription) * 60 + frame(7, 77)
    answers = frames_of(connection.ask(sent))
    assert [answer[20:] for answer in answers[:-1]] == [b"%d" % number for number in range(50)]
    assert answers[-1] == frame(8, 77)


@pytest.mark.local_engine("plants a batch that a cluster would refuse")
@pytest.mark.parametrize("codec", [0, 4])
def test_polls_get_past_what_cannot_be_read(broker: BlipBroker, codec: int) -> None:
    connection = broker.client()
    subscription = subscribe(connection)
    connection.ask(publish(b"a"))
    poison = crooked([Record(b"v")] * 3, bytearray.clear, codec=codec)
    plant(broker.store.get(Partition("demo", 0)), poison)
    connection.ask(publish(b"b"))
    answers = frames_of(connection.ask(poll(subscription) * 2 + frame(7, 77)))
    assert [answer[20:] for answer in answers[:-1]] == [b"a", b"b"]
    assert broker.metrics.unreadable_batches


def test_polls_of_many_subscriptions_in_line(broker: BlipBroker) -> None:
    connection = broker.client()
    first, second = subscribe(connection), subscribe(connection, qos=0)
    sent = publish(b"a") + poll(first, 1) + poll(second, 2) + poll(first, 3) + frame(7, 4)
    assert connection.ask(sent) == (
        publish(b"a", correlation=1) + publish(b"a", qos=0, correlation=2) + frame(8, 4)
    )


def test_tags_that_are_foreseen_can_be_acknowledged_in_one_go(broker: BlipBroker) -> None:
    connection = broker.client()
    number = subscribe(connection)
    sent = publish(b"a") + poll(number) + ack(number, 1) + ack(number, 1) + frame(7, 4)
    refused = nack(1, 404, "unknown subscription or delivery tag")
    assert connection.ask(sent) == publish(b"a", correlation=1) + refused + frame(8, 4)


@pytest.mark.local_engine("counts what is answered in one turn")
def test_a_full_connection_is_not_served(broker: BlipBroker) -> None:
    """Answers are never more than what makes a connection full and one kernel's worth."""
    connection = broker.client()
    number = subscribe(connection)
    for start in range(0, 3000, 100):
        connection.ask(b"".join(publish(bytes(1000)) for _ in range(start, start + 100)))
    connection.full_bytes = 10_000
    connection.feed(poll(number) * 3000 + frame(7, 5))
    got = frames_of(connection.take())
    assert 0 < len(got) < 600
    rounds = 0
    while got[-1][4] != 8:
        got += frames_of(connection.ask(b""))
        rounds += 1
        assert rounds < 50
    assert len(got) == 3001
    assert [int.from_bytes(each[5:13], "big") for each in got[:-1]] == list(range(1, 3001))


def test_largest_message(broker: BlipBroker) -> None:
    connection = broker.client()
    number = subscribe(connection)
    message = bytes((16 << 20) - 12 - 4)
    assert connection.ask(publish(message) + frame(7, 1)) == frame(8, 1)
    assert connection.ask(poll(number)) == publish(message, correlation=1)


def test_messages_a_topic_does_not_take(broker: BlipBroker) -> None:
    broker.topic("demo", max_message_bytes="500")
    connection = broker.client()
    number = subscribe(connection)
    sent = [publish(bytes(10 if place % 10 else 1000), correlation=place) for place in range(100)]
    answers = frames_of(connection.ask(b"".join(sent) + frame(7, 1)))
    refused = [answer for answer in answers if answer[4] == 6]
    assert [answer[12] for answer in refused] == list(range(0, 100, 10))
    assert b"max.message.bytes accepts 500" in refused[0]
    delivered = frames_of(connection.ask(poll(number) * 100))
    assert len(delivered) == 90


def test_a_compacted_topic_refuses_messages_without_a_key(broker: BlipBroker) -> None:
    broker.topic("demo", cleanup_policy="compact")
    connection = broker.client()
    (answer,) = frames_of(connection.ask(publish(b"x")))
    assert answer[4] == 6
    assert b"without a key" in answer


@pytest.mark.parametrize("name", ["a/b", "..", "x" * 250, "tab\t", "\0\n", "x" * 65_535])
@pytest.mark.local_engine("Kafka has no such names")
def test_names_are_any_text(broker: BlipBroker, name: str) -> None:
    connection = broker.client()
    topic = name.encode()
    number = subscribe(connection, topic)
    connection.ask(publish(b"x", topic=topic))
    assert connection.ask(poll(number)) == publish(b"x", topic=topic, correlation=1)


def test_a_name_that_is_taken_by_the_broker_itself(broker: BlipBroker) -> None:
    connection = broker.client()
    name = "__consumer_offsets"
    (answer,) = frames_of(connection.ask(publish(b"x", topic=name.encode(), qos=0)))
    assert answer[4] == 6
    assert int.from_bytes(answer[13:15], "big") == 400


@pytest.mark.local_engine("a cluster that has groups has it")
def test_a_name_of_the_broker_that_is_not_there_yet(broker: BlipBroker) -> None:
    connection = broker.client()
    name = "__consumer_offsets"
    payload = len(name.encode()).to_bytes(2, "big") + name.encode() + b"\x01"
    (answer,) = frames_of(connection.ask(frame(4, 3, payload)))
    assert answer[4] == 6


@pytest.mark.local_engine("Kafka has no such names")
def test_names_that_are_not_ascii(broker: BlipBroker) -> None:
    connection = broker.client()
    topic = "grüße".encode()
    number = subscribe(connection, topic)
    connection.ask(publish(b"x", topic=topic))
    assert connection.ask(poll(number)) == publish(b"x", topic=topic, correlation=1)


def test_topics_are_made_only_if_that_is_allowed(tmp_path: Path) -> None:
    broker = BlipBroker(tmp_path, auto_create_topics=False)
    connection = broker.client()
    answers = frames_of(connection.ask(publish(b"x") + frame(4, 3, b"\x00\x04demo\x01")))
    assert [int.from_bytes(answer[13:15], "big") for answer in answers] == [404, 404]
    broker.stop()


def test_one_connection_keeps_to_one_partition(broker: BlipBroker) -> None:
    broker.topic("demo", partitions=4)
    for _ in range(4):
        connection = broker.client()
        before = [broker.log.marks(Partition("demo", index)).end for index in range(4)]
        for number in range(10):
            connection.ask(publish(b"%d" % number))
        after = [broker.log.marks(Partition("demo", index)).end for index in range(4)]
        assert sorted(end - start for start, end in zip(before, after, strict=True)) == [
            0,
            0,
            0,
            10,
        ]


def let_be_seen(broker: BlipBroker | BlipFleet) -> None:
    """Time for gateways to see what others did to topics, and to keep their seats meanwhile."""
    for _ in range(50):
        broker.runtime.advance(100)


def test_deleted_topics_are_made_again(broker: BlipBroker) -> None:
    connection = broker.client()
    number = subscribe(connection)
    connection.ask(publish(b"x"))
    broker.topics.delete("demo")
    let_be_seen(broker)
    assert connection.ask(poll(number) + publish(b"y") + frame(7, 1)) == frame(8, 1)
    assert broker.log.marks(Partition("demo", 0)).end == 1
    let_be_seen(broker)
    sent = publish(b"z") + poll(number) + frame(7, 1)
    assert connection.ask(sent) == frame(8, 1), "a subscription is to the topic that was"


def test_unknown_subscriptions_are_silent_to_polls(broker: BlipBroker) -> None:
    connection = broker.client()
    assert connection.ask(poll(999) * 1000) == b""
    answers = connection.ask(ack(999, 1) + ack(999, 2))
    text = "unknown subscription or delivery tag"
    assert answers == nack(1, 404, text) + nack(2, 404, text)


def test_nothing_is_taken_before_the_handshake(broker: BlipBroker) -> None:
    connection = broker.connect()
    kinds = (publish(b"x"), poll(2), ack(2, 1), frame(8, 4), frame(6, 4), frame(4, 4, b"x"))
    for each in kinds:
        correlation = int.from_bytes(each[5:13], "big")
        assert connection.ask(each) == nack(correlation, 401, "unauthenticated")
    assert "demo" not in {topic.name for topic in broker.topics.all()}


@pytest.mark.local_engine("time passes while a cluster is asked")
def test_wrong_keys_slow_a_client_down(broker: BlipBroker) -> None:
    broker.attempts = LocalAttempts(broker.runtime)
    connection = broker.connect()
    connection.ask(HELLO)
    refused = nack(1, 401, "invalid API key")
    assert connection.ask(frame(2, 1, b"\x00\x03bad")) == refused
    for delay_ms in (100, 200, 400):
        assert connection.ask(frame(2, 1, b"\x00\x03bad") + frame(7, 4)) == b""
        broker.runtime.advance(delay_ms - 1)
        assert connection.ask(b"") == b""
        broker.runtime.advance(1)
        assert connection.ask(b"") == refused + nack(4, 401, "unauthenticated")
    assert connection.ask(AUTH) == frame(5, 2, bytes(8))
    assert connection.ask(frame(7, 4)) == frame(8, 4)


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("127.0.0.1:5000", True),
        ("127.8.8.8:5000", True),
        ("[::1]:5000", True),
        ("[::ffff:127.0.0.1]:5000", True),
        ("10.0.0.1:5000", False),
        ("[2001:db8::1]:5000", False),
        ("unknown:0", False),
    ],
)
def test_the_development_key_is_for_this_machine(tmp_path: Path, peer: str, local: bool) -> None:
    assert keys.accepted("dev-key", Config(data=tmp_path), peer) is local
    assert not keys.accepted("", Config(data=tmp_path), peer)


def test_given_keys_replace_the_development_key(tmp_path: Path) -> None:
    config = Config(data=tmp_path, blipmq_api_keys=Secrets(("one", "zwölf")))
    for key, good in {"one": True, "zwölf": True, "dev-key": False, "on": False}.items():
        assert keys.accepted(key, config, "127.0.0.1:1") is good
        assert keys.accepted(key, config, "10.0.0.1:1") is good
    assert keys.notice(config) is None
    assert "dev-key" in (keys.notice(Config(data=tmp_path)) or "")


def test_keys_come_from_the_environment_and_are_not_shown() -> None:
    config = load(environment={"PENTALOG_BLIPMQ_API_KEYS": "secret-1, secret-2 ,,"}).config
    assert config.blipmq_api_keys == ("secret-1", "secret-2")
    assert "secret-" not in repr(config)
    assert "secret" not in str(plain(config.blipmq_api_keys))


@pytest.mark.local_engine("each gateway counts its own part")
def test_what_is_counted(broker: BlipBroker) -> None:
    connection = broker.client()
    number = subscribe(connection)
    connection.ask(publish(b"a") * 3 + poll(number) * 4 + ack(number, 1) + ack(number, 9))
    metrics = broker.metrics
    assert (metrics.deliveries, metrics.acknowledgements, metrics.request_errors) == (3, 1, 1)
    assert metrics.requests == 2 + 1 + 3 + 4 + 2
    assert metrics.subscriptions_opened == 1


def test_a_connection_that_goes_while_polls_wait(tmp_path: Path) -> None:
    runtime = Held()
    broker = BlipBroker(tmp_path, runtime=runtime)
    connection = broker.client()
    number = subscribe(connection)
    runtime.held_lanes.add("held")
    connection.feed(publish(b"a") + poll(number) + poll(number))
    connection.session.close()
    runtime.held_lanes.clear()
    runtime.advance(5_000)
    second = broker.client()
    assert second.ask(poll(number)) == publish(b"a", correlation=1)
    broker.stop()


def test_a_stuck_disk_does_not_keep_polls_for_ever(tmp_path: Path) -> None:
    runtime = Held()
    broker = BlipBroker(tmp_path, runtime=runtime)
    connection = broker.client()
    number = subscribe(connection)
    runtime.held_lanes.add("held")
    assert connection.ask(publish(b"a", qos=0) + poll(number) + frame(7, 1)) == b""
    runtime.advance(COMMIT_WAIT_MS_MAX)
    assert connection.take() == frame(8, 1)
    runtime.held_lanes.clear()
    runtime.step()
    broker.stop()


def test_many_runs_of_polls_wait_in_line(tmp_path: Path) -> None:
    runtime = Held()
    broker = BlipBroker(tmp_path, runtime=runtime)
    connection = broker.client()
    first, second = subscribe(connection), subscribe(connection)
    runtime.held_lanes.add("held")
    connection.feed(publish(b"a"))
    for _ in range(100):
        connection.feed(poll(first) + poll(second))
    connection.feed(frame(7, 1))
    runtime.held_lanes.clear()
    runtime.step()
    assert connection.take() == publish(b"a", correlation=1) * 2 + frame(8, 1)
    broker.stop()


def test_handshake_in_one_go_with_everything_else(broker: BlipBroker) -> None:
    connection = broker.connect()
    sent = HELLO + AUTH + frame(4, 3, b"\x00\x04demo\x01") + publish(b"a") + poll(2) + ack(2, 1)
    answers = frames_of(connection.ask(sent + frame(7, 5)))
    assert [answer[4] for answer in answers] == [5, 5, 5, 3, 8]

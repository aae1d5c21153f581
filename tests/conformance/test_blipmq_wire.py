"""A real port, spoken to by a client that was written from the protocol's document alone."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients"))

from blipmq_raw import ACK, NACK, PING, POLL, RawClient, frame, publish_frame, u16, u64

import pentalog
from pentalog.clients.rustlog import RustLogClient
from pentalog.config import Listen

pytestmark = pytest.mark.clients

DOORS = ("kafka", "blipmq", "rustlog")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pentalog.Broker]:
    listen = tuple(Listen(name, "127.0.0.1", 0) for name in DOORS)
    # A busy machine must not make acknowledgements late.
    defaults = {"subscription.lease.ms": "60000"}
    directory = tmp_path_factory.mktemp("data")
    with pentalog.Broker(directory, listen=listen, topic_defaults=defaults) as broker:
        yield broker


@pytest.fixture
def port(running: pentalog.Broker) -> int:
    return int(running.address("blipmq").rpartition(":")[2])


@pytest.fixture
def name() -> str:
    return f"blip-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client(port: int) -> Iterator[RawClient]:
    with RawClient(port) as client:
        yield client.shake_hands()


def test_publish_poll_acknowledge(client: RawClient, name: str) -> None:
    subscription = client.subscribe(name, 1)
    assert client.fence(publish_frame(7, 1, name, b"hi")) == []
    (delivery,) = client.poll(subscription)
    assert delivery.message == (1, name, b"hi")
    assert client.acknowledge(subscription, delivery.correlation_id) == []
    (refused,) = client.acknowledge(subscription, delivery.correlation_id)
    assert refused.error == (404, "unknown subscription or delivery tag")


def test_many_frames_at_once(client: RawClient, name: str) -> None:
    subscription = client.subscribe(name, 1)
    count = 20_000
    publishes = [publish_frame(number, 1, name, b"%d" % number) for number in range(count)]
    assert client.fence(*publishes) == []
    got: list[bytes] = []
    while len(got) < count:
        deliveries = client.poll(subscription, 1000)
        got += [delivery.message[2] for delivery in deliveries]
        tags = [delivery.correlation_id for delivery in deliveries]
        assert client.acknowledge(subscription, *tags) == []
    assert got == [b"%d" % number for number in range(count)]


def test_publisher_that_never_reads(port: int, name: str) -> None:
    """Back-pressure by TCP, and nothing refused."""
    with RawClient(port) as watcher, RawClient(port) as publisher:
        watcher.shake_hands()
        subscription = watcher.subscribe(name, 1)
        publisher.shake_hands()
        block = b"".join(publish_frame(1, 1, name, bytes(1000)) for _ in range(1000))
        for _ in range(20):
            publisher.send(block)
        assert publisher.fence() == []
        got = 0
        while got < 20_000:
            deliveries = watcher.poll(subscription, 1000)
            assert deliveries
            got += len(deliveries)
            watcher.acknowledge(subscription, *(each.correlation_id for each in deliveries))


def test_the_idiom_of_the_originals_consumer(client: RawClient, name: str) -> None:
    """POLL, take the next frame as its answer, ACK; nothing else ever comes."""
    subscription = client.subscribe(name, 1)
    client.send(*[publish_frame(number, 1, name, b"%d" % number) for number in range(20)])
    for number in range(20):
        client.send(frame(POLL, 100 + number, u64(subscription)))
        delivery = client.receive()
        assert delivery.message == (1, name, b"%d" % number)
        client.send(frame(ACK, delivery.correlation_id, u64(subscription)))
    assert client.fence() == []


def test_errors_of_the_document(port: int) -> None:
    with RawClient(port) as client:
        client.send(frame(PING, 4))
        assert client.receive().error == (401, "unauthenticated")
        client.send(frame(2, 5, u16(7) + b"dev-key"))
        assert client.receive().error == (400, "HELLO not performed")
        client.send(frame(1, 6, u16(9)))
        assert client.receive().error == (426, "unsupported protocol version")
        client.send(frame(1, 7, u16(1)), frame(2, 8, u16(5) + b"wrong"))
        assert client.receive().type == ACK
        refused = client.receive()
        assert (refused.correlation_id, refused.error) == (8, (401, "invalid API key"))
        client.send(frame(2, 9, u16(7) + b"dev-key"))
        assert client.receive().subscription_id == 0
        for sent, text in {
            frame(3, 1, b"\x01\x00\x00x"): "empty topic",
            frame(3, 1, b"\x02\x00\x01tx"): "invalid QoS value",
            frame(4, 1, b"\x00"): "invalid SUBSCRIBE payload",
            frame(4, 1, b"\x00\x00\x01"): "empty topic",
            frame(4, 1, b"\x00\x01t\x02"): "invalid QoS value",
            frame(5, 1, b""): "invalid ACK payload",
            frame(5, 1, bytes(8)): "subscription_id must be non-zero",
            frame(9, 1, b"1"): "invalid POLL payload",
            frame(9, 1, bytes(8)): "subscription_id must be non-zero",
        }.items():
            (refused,) = client.fence(sent)
            assert (refused.correlation_id, refused.error) == (1, (400, text))


@pytest.mark.parametrize("bad", [bytes(4), b"\x00\x00\x00\x08", b"\x01\x00\x00\x01"])
def test_bad_lengths_close(client: RawClient, bad: bytes) -> None:
    client.send(frame(PING, 1) + bad)
    assert client.receive().correlation_id == 1
    with pytest.raises((EOFError, ConnectionResetError)):
        client.receive()


def kafka_records(address: str, topic: str, count: int) -> list[tuple[bytes, dict[str, bytes]]]:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": uuid.uuid4().hex}
        | {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    )
    consumer.subscribe([topic])
    found = []
    while len(found) < count:
        message = consumer.poll(20)
        assert message is not None, f"only {len(found)} of {count}"
        assert message.error() is None
        found.append((message.value() or b"", dict(message.headers() or [])))
    consumer.close()
    return found


def test_kafka_reads_what_blipmq_wrote(
    running: pentalog.Broker, client: RawClient, name: str
) -> None:
    assert client.fence(publish_frame(1, 1, name, b"one"), publish_frame(2, 0, name, b"zero")) == []
    found = kafka_records(running.address("kafka"), name, 2)
    assert found == [(b"one", {}), (b"zero", {"blipmq.qos": b"0"})]


def test_blipmq_reads_what_kafka_wrote(
    running: pentalog.Broker, client: RawClient, name: str
) -> None:
    address = running.address("kafka")
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, 3, 1)])[name].result()
    subscription = client.subscribe(name, 1)
    producer = Producer({"bootstrap.servers": address, "compression.type": "lz4", "linger.ms": 5})
    for number in range(300):
        producer.produce(name, b"%d" % number, key=b"%d" % number, headers=[("h", b"v")])
    producer.produce(name, None, key=b"tombstone")
    producer.flush()
    got: list[bytes] = []
    while len(got) < 301:
        deliveries = client.poll(subscription, 100)
        assert deliveries
        got += [delivery.message[2] for delivery in deliveries]
        assert {delivery.message[0] for delivery in deliveries} == {1}
        client.acknowledge(subscription, *(each.correlation_id for each in deliveries))
    assert sorted(got) == sorted([b"", *(b"%d" % number for number in range(300))])


def test_only_committed_transactions_are_delivered(
    running: pentalog.Broker, client: RawClient, name: str
) -> None:
    subscription = client.subscribe(name, 1)
    producer = Producer({"bootstrap.servers": running.address("kafka"), "transactional.id": name})
    producer.init_transactions()
    for kept in (False, True):
        producer.begin_transaction()
        producer.produce(name, b"kept" if kept else b"aborted")
        producer.flush()
        assert client.poll(subscription) == []
        if kept:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    (delivery,) = client.poll(subscription, 5)
    assert delivery.message[2] == b"kept"


def test_rustlog_and_blipmq_read_each_other(
    running: pentalog.Broker, client: RawClient, name: str
) -> None:
    subscription = client.subscribe(name, 1)
    with RustLogClient(running.address("rustlog")) as rustlog:
        rustlog.produce(name, 0, [b"from rustlog", b"", b"\x00\xff"])
        deliveries = client.poll(subscription, 5)
        assert [each.message[2] for each in deliveries] == [b"from rustlog", b"", b"\x00\xff"]
        client.fence(publish_frame(1, 1, name, b"from blipmq"))
        assert [each.value for each in rustlog.records(name, 0)][-1] == b"from blipmq"


def test_dead_letters_are_a_topic_like_any_other(
    running: pentalog.Broker, client: RawClient, name: str
) -> None:
    admin = AdminClient({"bootstrap.servers": running.address("kafka")})
    config = {"subscription.attempts.max": "1", "subscription.lease.ms": "1"}
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result()
    subscription = client.subscribe(name, 1)
    client.fence(publish_frame(1, 1, name, b"unwanted"))
    assert len(client.poll(subscription)) == 1
    dead = client.subscribe(f"{name}.dlq", 1)
    ((value, headers),) = kafka_records(running.address("kafka"), f"{name}.dlq", 1)
    assert (value, headers["dead.reason"], headers["dead.offset"]) == (
        b"unwanted",
        b"attempts",
        b"0",
    )
    (delivery,) = client.poll(dead)
    assert delivery.message[2] == b"unwanted"
    assert client.poll(subscription) == []


def test_the_development_key_is_announced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pentalog.app")
    with pentalog.Broker(tmp_path, listen=(Listen("blipmq", "127.0.0.1", 0),)):
        assert "'dev-key' is accepted" in caplog.text


def test_keys_are_not_told_to_admin_clients(tmp_path: Path) -> None:
    listen = tuple(Listen(name, "127.0.0.1", 0) for name in DOORS[:2])
    with pentalog.Broker(tmp_path, listen=listen, blipmq_api_keys="hidden-1,hidden-2") as broker:
        admin = AdminClient({"bootstrap.servers": broker.address("kafka")})
        resource = ConfigResource(ResourceType.BROKER, "0")
        shown = admin.describe_configs([resource])[resource].result()
        assert "hidden" not in str({name: entry.value for name, entry in shown.items()})
        port = int(broker.address("blipmq").rpartition(":")[2])
        with RawClient(port) as client:
            client.shake_hands("hidden-2")
        with RawClient(port) as client:
            client.send(frame(1, 1, u16(1)), frame(2, 2, u16(7) + b"dev-key"))
            client.receive()
            answer = client.receive()
            assert answer.type == NACK
            assert answer.error == (401, "invalid API key")

"""A broker that fails on demand: what clients of each door see of it."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from pentalog.clients.blipmq import BlipmqClient, BlipmqError
from pentalog.clients.rustlog import RustLogClient, RustLogError
from pentalog.testing import Broker

DEADLINE_S = 30.0


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def connect(broker: Broker, door: str) -> socket.socket:
    host, _, port = broker.address(door).rpartition(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


def read_frame(client: socket.socket) -> bytes:
    return read_exactly(client, int.from_bytes(read_exactly(client, 4), "big"))


def read_exactly(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = client.recv(size - len(found))
        assert part, "the broker hung up"
        found += part
    return found


def kafka_request(key: int, version: int, correlation_id: int, body: bytes = b"") -> bytes:
    return framed(struct.pack(">hhih", key, version, correlation_id, -1) + body)


def ping(client: socket.socket) -> None:
    client.sendall(kafka_request(18, 0, 1))
    assert read_frame(client)[:6] == b"\0\0\0\1\0\0"


def producer(broker: Broker, **settings: Any) -> Producer:
    return Producer(
        {"bootstrap.servers": broker.address("kafka"), "log_level": 0, "linger.ms": 0,
         "retry.backoff.ms": 10, "reconnect.backoff.ms": 10, "message.timeout.ms": 30_000,
         **settings}
    )  # fmt: skip


def produce(client: Producer, topic: str, value: bytes) -> KafkaError | None:
    """What became of one record."""
    found: list[KafkaError | None] = []
    client.produce(topic, value, on_delivery=lambda error, _: found.append(error))
    assert client.flush(DEADLINE_S) == 0
    return found[0]


def values(broker: Broker, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": broker.address("kafka"), "group.id": "g", "log_level": 0,
         "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )  # fmt: skip
    try:
        consumer.subscribe([topic])
        found: list[bytes] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(found) < count:
            assert time.monotonic() < deadline, found
            message = consumer.poll(0.2)
            if message is not None and not message.error():
                found.append(message.value())
        return found
    finally:
        consumer.close()


def test_every_door_has_its_own_address(pentalog: Broker) -> None:
    doors = ("kafka", "fluvio-sc", "fluvio-spu", "cursus", "rustlog", "blipmq", "http")
    assert len({pentalog.address(door) for door in doors}) == len(doors)


def test_one_broker_for_the_session(pentalog_session: Broker, request: Any) -> None:
    assert request.getfixturevalue("pentalog_session") is pentalog_session
    with connect(pentalog_session, "kafka") as client:
        ping(client)


def test_a_refused_produce_is_tried_again(pentalog: Broker) -> None:
    fault = pentalog.fail("kafka", "Produce", error="NOT_LEADER_OR_FOLLOWER", times=3)
    assert produce(producer(pentalog), "orders", b"one") is None
    assert fault.hits == 3
    assert values(pentalog, "orders", 1) == [b"one"]


def test_an_error_that_lasts_reaches_the_caller(pentalog: Broker) -> None:
    with pentalog.fail("kafka", "Produce", error="INVALID_RECORD"):
        error = produce(producer(pentalog), "orders", b"bad")
        assert error is not None
        assert error.code() == KafkaError.INVALID_RECORD
    assert produce(producer(pentalog), "orders", b"good") is None
    assert values(pentalog, "orders", 1) == [b"good"]


@pytest.mark.parametrize(
    ("request_name", "act"),
    [
        ("CreateTopics", lambda admin: admin.create_topics([NewTopic("made", 1)])["made"].result()),
        ("DescribeConfigs", None),
    ],
)
def test_admin_requests_can_be_refused(
    pentalog: Broker, request_name: str, act: Callable[[AdminClient], object] | None
) -> None:
    from confluent_kafka.admin import ConfigResource

    admin = AdminClient({"bootstrap.servers": pentalog.address("kafka"), "log_level": 0})
    if act is None:
        resource = ConfigResource(ConfigResource.Type.TOPIC, "made")

        def act(admin: AdminClient) -> object:
            return admin.describe_configs([resource])[resource].result()

    with (
        pentalog.fail("kafka", request_name, error="POLICY_VIOLATION"),
        pytest.raises(KafkaException) as caught,
    ):
        act(admin)
    assert caught.value.args[0].code() == KafkaError.POLICY_VIOLATION


def test_rustlog_requests_are_refused_in_their_dialect(pentalog: Broker) -> None:
    with RustLogClient(pentalog.address("rustlog")) as client:
        client.create_topic("t", 1)
        pentalog.fail("rustlog", "Produce", error=503, times=1)
        with pytest.raises(RustLogError, match="a test wants it"):
            client.produce("t", 0, [b"a"])
        assert client.produce("t", 0, [b"a"]).base_offset == 0
    pentalog.fail("rustlog", "Ping", error=500, times=1)
    with connect(pentalog, "kafka") as raw:
        raw.sendall(framed(b'{"type":"Ping"}'))
        assert json.loads(read_frame(raw))["code"] == 500
        raw.sendall(framed(b'{"type":"Ping"}'))
        assert json.loads(read_frame(raw))["type"] == "Pong"


def test_blipmq_frames_are_refused(pentalog: Broker) -> None:
    pentalog.fail("blipmq", "SUBSCRIBE", error=400, times=1)
    with BlipmqClient(pentalog.address("blipmq")) as client:
        with pytest.raises(BlipmqError, match="a test wants it"):
            client.subscribe("t")
        assert client.subscribe("t")


def test_cursus_commands_and_batches_are_refused(pentalog: Broker) -> None:
    pentalog.fail("cursus", "CREATE", error="NOT_LEADER", times=1)
    with connect(pentalog, "cursus") as client:
        client.sendall(framed(b"CREATE topic=t partitions=1"))
        assert read_frame(client) == b"ERROR: NOT_LEADER"
        client.sendall(framed(b"CREATE topic=t partitions=1"))
        assert b"ERROR" not in read_frame(client)
        pentalog.fail("cursus", "batch", error="broker_error", times=1)
        client.sendall(framed(b"\xba\x7c\0\x01t\0\0\0\0"))
        assert json.loads(read_frame(client))["error"] == "broker_error"


def test_fluvio_produce_is_refused(pentalog: Broker) -> None:
    pentalog.fail("fluvio", "Produce", error="TOPIC_NOT_FOUND", times=1)
    body = struct.pack(">BhiIH1sI", 0, -1, 1000, 1, 1, b"t", 1) + struct.pack(">II", 0, 0)
    with connect(pentalog, "fluvio-spu") as client:
        client.sendall(framed(struct.pack(">hhih", 0, 0, 9, 0) + body))
        answer = read_frame(client)
        assert answer[:4] == b"\0\0\0\x09"
        assert struct.pack(">h", 2001) in answer


def test_a_delay_is_met_by_what_it_names(pentalog: Broker) -> None:
    with connect(pentalog, "kafka") as client:
        ping(client)
        fault = pentalog.delay("kafka", "ApiVersions", delay_ms=200, times=1)
        started_s = time.monotonic()
        ping(client)
        assert time.monotonic() - started_s >= 0.19
        assert fault.hits == 1
        with pentalog.delay(delay_ms=100) as every:
            started_s = time.monotonic()
            client.sendall(kafka_request(18, 0, 1) * 50)
            for _ in range(50):
                read_frame(client)
            assert time.monotonic() - started_s >= 0.09
            assert 1 <= every.hits < 50
        ping(client)


def test_a_request_can_be_dropped_before_or_after_it_is_served(pentalog: Broker) -> None:
    with RustLogClient(pentalog.address("rustlog")) as client:
        client.create_topic("t", 1)
    body = b"\x01" + struct.pack(">H1sII", 1, b"t", 0, 1) + struct.pack(">I", 1) + b"v"
    for served in (False, True):
        pentalog.drop("rustlog", "Produce", served=served)
        with connect(pentalog, "rustlog") as raw:
            raw.sendall(framed(body))
            assert raw.recv(1) == b""
    with RustLogClient(pentalog.address("rustlog")) as client:
        until(lambda: len(client.fetch("t", 0, 0).records) == 1)


def test_connections_are_dropped_now(pentalog: Broker) -> None:
    with connect(pentalog, "kafka") as one, connect(pentalog, "rustlog") as other:
        ping(one)
        other.sendall(framed(b"\xff"))
        assert read_frame(other) == b"\xff"
        assert pentalog.drop_connections("kafka") == 1
        assert one.recv(1) == b""
        other.sendall(framed(b"\xff"))
        assert read_frame(other) == b"\xff"


def test_a_crash_keeps_what_was_acknowledged(pentalog: Broker) -> None:
    address = pentalog.address("kafka")
    client = producer(pentalog)
    assert produce(client, "orders", b"before") is None
    with connect(pentalog, "kafka") as idle:
        ping(idle)
        pentalog.restart()
        assert idle.recv(1) == b""
    assert pentalog.address("kafka") == address
    assert produce(client, "orders", b"after") is None
    assert values(pentalog, "orders", 2) == [b"before", b"after"]


def test_nobody_is_there_between_crash_and_restart(pentalog: Broker) -> None:
    host, _, port = pentalog.address("kafka").rpartition(":")
    pentalog.crash()
    with pytest.raises(OSError):
        socket.create_connection((host, int(port)), timeout=DEADLINE_S)
    assert not (pentalog.data / "pentalog.clean").exists()
    pentalog.restart()
    pentalog.restart(crash=False)
    with connect(pentalog, "kafka") as client:
        ping(client)


def test_a_producer_goes_on_over_a_crash(pentalog: Broker) -> None:
    client = producer(pentalog, **{"enable.idempotence": True})
    assert produce(client, "orders", b"0") is None
    pentalog.crash()
    found: list[KafkaError | None] = []
    for number in range(1, 20):
        client.produce("orders", b"%d" % number, on_delivery=lambda e, _: found.append(e))
    restarting = threading.Timer(0.2, pentalog.restart)
    restarting.start()
    assert client.flush(DEADLINE_S) == 0
    restarting.join()
    assert found == [None] * 19
    assert values(pentalog, "orders", 20) == [b"%d" % number for number in range(20)]


def test_a_full_disk_refuses_and_recovers(pentalog: Broker) -> None:
    with RustLogClient(pentalog.address("rustlog")) as client:
        client.create_topic("t", 1)
        client.produce("t", 0, [b"a"])
        with pentalog.full_disk(), pytest.raises(RustLogError, match="space"):
            client.produce("t", 0, [b"b"])
        assert client.produce("t", 0, [b"c"]).base_offset == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("amqp", "Publish"), "there are kafka, fluvio"),
        (("kafka", "produce"), "did you mean Produce"),
        (("fluvio", "Watch"), "these can: Produce, StreamFetch"),
    ],
)
def test_wishes_nothing_can_meet_are_refused(arguments: tuple[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Broker().fail(*arguments, error="OTHER")
    with pytest.raises(ValueError, match="NOT_LEADER_OR_FOLLOWER"):
        Broker().fail("kafka", "Produce", error="NOT_A_LEADER")


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not met():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)

"""One record through several doors: what Cursus writes, others read, and back."""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka import Message as KafkaMessage
from cursus_subject import Subject, Wire, running
from tests.support.cursus_world import Message, batch, messages_of

from pentalog.clients.blipmq import BlipmqClient
from pentalog.clients.rustlog import RustLogClient

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with running(tmp_path_factory.mktemp("doors"), doors=("rustlog", "blipmq")) as started:
        yield started


@pytest.fixture
def topic(subject: Subject) -> str:
    name = f"doors-{uuid.uuid4().hex[:12]}"
    with subject.connect() as wire:
        assert wire.text(f"CREATE topic={name} partitions=1").startswith("OK")
    return name


def kafka_records(
    subject: Subject, topic: str, count: int, *, isolation: str = "read_committed"
) -> list[KafkaMessage]:
    consumer = Consumer(
        {"bootstrap.servers": subject.kafka, "group.id": "none", "enable.auto.commit": False}
        | {"isolation.level": isolation, "check.crcs": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[KafkaMessage] = []
    deadline = time.monotonic() + 200
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None
            found.append(message)
    consumer.close()
    return found


def cursus_records(wire: Wire, topic: str, rest: str = "") -> list[Message]:
    command = f"CONSUME topic={topic} partition=0 offset=0 member=m wait_ms=1000 {rest}"
    return messages_of(wire.ask(command))


def test_a_cursus_batch_read_by_all(subject: Subject, topic: str) -> None:
    sent = [
        Message(
            b"payload %d" % number, seq=number, producer=b"p1", key=b"k", epoch=7, event=b"Opened",
            schema=2, version=number, metadata=b'{"a":1}',
        )
        for number in range(1, 4)
    ]  # fmt: skip
    with (
        subject.connect() as wire,
        BlipmqClient(subject.doors["blipmq"]) as blipmq,
        RustLogClient(subject.doors["rustlog"]) as rustlog,
    ):
        subscription = blipmq.subscribe(topic)
        assert wire.publish(batch(sent, topic=topic, acks="-1"))["last_offset"] == 2
        kafka = kafka_records(subject, topic, 3)
        assert [message.value() for message in kafka] == [m.payload for m in sent]
        assert {message.key() for message in kafka} == {b"k"}
        assert dict(kafka[1].headers() or ()) == {
            "cursus.producer_id": b"p1",
            "cursus.seq": b"2",
            "cursus.epoch": b"7",
            "cursus.event_type": b"Opened",
            "cursus.schema_version": b"2",
            "cursus.aggregate_version": b"2",
            "cursus.metadata": b'{"a":1}',
        }
        fetched = rustlog.fetch(topic, 0, 0)
        assert [bytes(record.value) for record in fetched.records] == [m.payload for m in sent]
        polled = blipmq.poll(subscription, 3)
        assert [bytes(delivery.message) for delivery in polled] == [m.payload for m in sent]
        back = cursus_records(wire, topic)
        for offset, message in enumerate(sent):
            message.offset = offset
        assert back == sent


def test_what_others_write_is_read_by_cursus(subject: Subject, topic: str) -> None:
    producer = Producer({"bootstrap.servers": subject.kafka, "compression.type": "zstd"})
    producer.produce(topic, b"by kafka", key=b"k", headers=[("trace", b"abc"), ("raw", b"\xff")])
    producer.produce(topic, b"as cursus", headers=[("cursus.seq", b"9"), ("cursus.epoch", b"4")])
    assert producer.flush(20) == 0
    with (
        BlipmqClient(subject.doors["blipmq"]) as blipmq,
        RustLogClient(subject.doors["rustlog"]) as rustlog,
        subject.connect() as wire,
    ):
        rustlog.produce(topic, 0, [b"by rustlog"])
        blipmq.publish(topic, b"by blipmq")
        found = cursus_records(wire, topic)
    assert [message.payload for message in found] == [
        b"by kafka", b"as cursus", b"by rustlog", b"by blipmq",
    ]  # fmt: skip
    assert json.loads(found[0].metadata) == {
        "headers": [["trace", "abc"], ["raw", {"base64": "/w=="}]]
    }
    assert (found[1].seq, found[1].epoch, found[1].metadata) == (9, 4, b"")
    assert [message.offset for message in found] == [0, 1, 2, 3]


def test_transactions_of_both_are_isolated_from_both(subject: Subject, topic: str) -> None:
    producer = Producer({"bootstrap.servers": subject.kafka, "transactional.id": f"kafka-{topic}"})
    producer.init_transactions(20)
    with subject.connect() as wire:
        name = f"cursus-{topic}"
        words = wire.text(f"INIT_PRODUCER_ID transactional_id={name}").split()
        who = f"transactional_id={name} {words[2]} {words[3]}"
        assert wire.text(f"BEGIN_TXN {who}").startswith("OK")
        publish = f"TXN_PUBLISH {who} topic={topic} partition=0 seqNum=1 message=ours"
        assert wire.text(publish).startswith("OK")
        assert cursus_records(wire, topic) == []
        assert wire.text(f"END_TXN {who} result=commit").startswith("OK")
        assert [m.value() for m in kafka_records(subject, topic, 1)] == [b"ours"]
        producer.begin_transaction()
        producer.produce(topic, b"theirs", partition=0)
        producer.flush(20)
        assert [m.payload for m in cursus_records(wire, topic)] == [b"ours"]
        uncommitted = cursus_records(wire, topic, "isolation=read_uncommitted")
        assert [m.payload for m in uncommitted] == [b"ours", b"theirs"]
        producer.abort_transaction(20)
        producer.begin_transaction()
        producer.produce(topic, b"kept", partition=0)
        producer.commit_transaction(20)
        assert [m.payload for m in cursus_records(wire, topic)] == [b"ours", b"kept"]
    assert [m.value() for m in kafka_records(subject, topic, 2)] == [b"ours", b"kept"]


def test_offsets_are_shared(subject: Subject, topic: str) -> None:
    with subject.connect() as wire, RustLogClient(subject.doors["rustlog"]) as rustlog:
        wire.publish(batch([Message()] * 5, topic=topic, acks="-1"))
        group = f"group-{topic}"
        assert wire.ask(f"COMMIT {topic} {group} 0 3") == b"OK"
        assert rustlog.committed(group, topic, 0) == 3
        consumer = Consumer({"bootstrap.servers": subject.kafka, "group.id": group})
        (committed,) = consumer.committed([TopicPartition(topic, 0)], timeout=20)
        assert committed.offset == 3
        consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
        consumer.close()
        fetch = f"FETCH_OFFSET topic={topic} partition=0 group={group}"
        assert wire.text(fetch) == "OK offset=4"


def test_eighteen_records_of_a_mebibyte(subject: Subject, topic: str) -> None:
    """What one frame of the original could not hold, and closed streams over and over."""
    with subject.connect() as wire:
        for number in range(18):
            body = batch([Message(bytes([number]) * (1 << 20))], topic=topic, acks="-1")
            assert wire.publish(body)["last_offset"] == number
        wire.send(f"STREAM topic={topic} partition=0 group=large")
        got: list[int] = []
        while len(got) < 18:
            frame = wire.receive()
            assert len(frame) <= 16 << 20
            if frame:
                got += [message.offset for message in messages_of(frame)]
        assert got == list(range(18))


@pytest.mark.parametrize("stored", [True, False])
def test_a_connection_that_never_reads_its_acks(
    subject: Subject, topic: str, *, stored: bool
) -> None:
    """The Go SDK does not read answers to acks=0, good or bad: they must not stop it.

    16,000 answers of a kilobyte are more than the sockets and the broker together would hold.
    """
    into = topic if stored else f"no-{topic}"
    body = batch([Message(producer=b"p" * 1_000)], topic=into, acks="0")
    host, _, port = subject.cursus.partition(":")
    with socket.socket() as mute, subject.connect() as other:
        # Before it connects: a window that was offered and is taken back makes the kernel drop
        # what confirms our own bytes, and nothing moves for as long as its timers say.
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        mute.settimeout(120)
        mute.connect((host, int(port)))
        for _ in range(16):
            mute.sendall((len(body).to_bytes(4, "big") + body) * 1_000)
        last = batch([Message(b"the last")], topic=topic, acks="0")
        mute.sendall(len(last).to_bytes(4, "big") + last)
        wanted = f":leo={16_001 if stored else 1}:"
        deadline = time.monotonic() + 120
        while wanted not in (answer := other.text(f"LIST_OFFSETS topic={topic}")):
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)

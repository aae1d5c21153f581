"""Every request of RustLog, in both dialects, with its largest legal and its first illegal form.

No turn of the broker's loop may take longer than 20 ms of CPU, and what is refused is refused in
RustLog's own words.
"""

from __future__ import annotations

import base64
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import pytest
from tests.hostile.kafka_topics import create_topic
from tests.hostile.longest_turn import UNSYNCED, TimedBroker
from tests.hostile.rustlog_wire import (
    PING,
    RustLogClient,
    framed,
    numbers,
    packed,
    produce,
    string,
    text,
)

from pentalog.protocols.rustlog import messages
from pentalog.protocols.rustlog.frames import FRAME_BYTES_MAX
from pentalog.protocols.rustlog.messages import PARTITIONS_MAX, RECORDS_MAX
from pentalog.protocols.rustlog.records import RECORDS_MAX as RECORDS_PACKED_MAX

TOPICS = 600
GROUPS = 3_000
WIDE = "wide"
LONG = "x" * 0xFFFF
BIG = FRAME_BYTES_MAX - 200


@dataclass(frozen=True)
class Row:
    """A request: frames, and what the first byte or the type of the answer is."""

    legal: bytes
    illegal: bytes | None
    """The first one that is refused; None: there is none."""


def packed_rows() -> dict[type, Row]:
    record = numbers(BIG // RECORDS_PACKED_MAX - 4) + bytes(BIG // RECORDS_PACKED_MAX - 4)
    too_many = BIG // 4 - 10
    return {
        messages.Produce: Row(
            framed(
                b"\x01"
                + string(WIDE)
                + numbers(0, RECORDS_PACKED_MAX)
                + record * RECORDS_PACKED_MAX
            ),
            framed(b"\x01" + string(WIDE) + numbers(0, too_many) + bytes(4 * too_many)),
        ),
        messages.Fetch: Row(
            packed(0x02, "", WIDE, tail=numbers(1, 0, FRAME_BYTES_MAX, wide=1)),
            packed(0x02, "", LONG, tail=numbers(1, 0, FRAME_BYTES_MAX, wide=1)),
        ),
        messages.OffsetCommit: Row(
            packed(0x03, LONG, LONG, tail=numbers(0, 1, wide=1)),
            packed(0x03, LONG, LONG, tail=numbers(0)),
        ),
        messages.OffsetFetch: Row(
            packed(0x04, LONG, LONG, tail=numbers(0)), packed(0x04, LONG, LONG)
        ),
        messages.CreateTopic: Row(
            packed(0x05, "made", tail=numbers(PARTITIONS_MAX)),
            packed(0x05, "never", tail=numbers(1_000_000)),
        ),
        messages.ListTopics: Row(packed(0x06), None),
        messages.DescribeTopic: Row(packed(0x07, WIDE), packed(0x07, LONG)),
        messages.DescribePartition: Row(
            packed(0x08, WIDE, tail=numbers(PARTITIONS_MAX - 1)),
            packed(0x08, WIDE, tail=numbers(1 << 31)),
        ),
        messages.MetricsFetch: Row(packed(0x09), None),
        messages.Ping: Row(framed(b"\xff" + bytes(BIG)), None),
    }


def json_rows() -> dict[type, Row]:
    record = base64.b64encode(bytes(BIG * 3 // 4 // RECORDS_MAX - 20)).decode()
    return {
        messages.Produce: Row(
            text(type="Produce", topic=WIDE, partition=2, records=[record] * RECORDS_MAX),
            text(type="Produce", topic=WIDE, partition=2, records=[""] * (BIG // 3)),
        ),
        messages.Fetch: Row(
            text(type="Fetch", topic=WIDE, partition=1, offset=0, max_bytes=1 << 40),
            text(type="Fetch", topic=WIDE, partition=1, offset=0, max_bytes=1 << 64),
        ),
        messages.OffsetCommit: Row(
            text(type="OffsetCommit", group="g" * 30_000, topic=WIDE, partition=0, offset=1),
            text(type="OffsetCommit", group="g", topic=WIDE, partition=0, offset=1 << 64),
        ),
        messages.OffsetFetch: Row(
            text(type="OffsetFetch", group="g" * 500_000, topic="t" * 500_000, partition=0),
            text(type="OffsetFetch", group="g", topic=WIDE, partition=-1),
        ),
        messages.CreateTopic: Row(
            text(type="CreateTopic", topic="made-too", partition_count=PARTITIONS_MAX),
            text(type="CreateTopic", topic="never", partition_count=PARTITIONS_MAX + 1),
        ),
        messages.ListTopics: Row(text(type="ListTopics"), None),
        messages.DescribeTopic: Row(
            text(type="DescribeTopic", topic=WIDE), text(type="DescribeTopic", topic="y" * BIG)
        ),
        messages.DescribePartition: Row(
            text(type="DescribePartition", topic=WIDE, partition=PARTITIONS_MAX - 1),
            text(type="DescribePartition", topic=WIDE, partition=1 << 31),
        ),
        messages.MetricsFetch: Row(text(type="MetricsFetch"), None),
        messages.Ping: Row(text(type="Ping", rest="x" * (FRAME_BYTES_MAX - 100)), None),
    }


ROWS = {"packed": packed_rows(), "json": json_rows()}
"""A request without a row fails the test."""
CASES = [
    (dialect, kind.__name__, form)
    for dialect, rows in ROWS.items()
    for kind in rows
    for form in ("legal", "illegal")
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimedBroker]:
    data = tmp_path_factory.mktemp("walk") / "data"
    with TimedBroker(data, "rustlog", arguments=UNSYNCED) as broker:
        with connect(broker) as client:
            client.ask(packed(0x05, WIDE, tail=numbers(PARTITIONS_MAX)))
            for number in range(TOPICS):
                client.socket.sendall(packed(0x05, f"topic-{number}", tail=numbers(1)))
            for number in range(GROUPS):
                tail = numbers(number % PARTITIONS_MAX, number, wide=1)
                client.socket.sendall(packed(0x03, f"group-{number}", WIDE, tail=tail))
            for _ in range(TOPICS + GROUPS):
                client.receive()
            for _ in range(10):
                client.ask(produce(WIDE, 1, [bytes(10)] * 60_000))
        yield broker


def connect(broker: TimedBroker) -> RustLogClient:
    return RustLogClient(broker.connect("rustlog"))


def test_every_request_has_a_row() -> None:
    for rows in ROWS.values():
        assert set(rows) == set(get_args(messages.Request))


@pytest.mark.parametrize(("dialect", "name", "form"), CASES)
def test_no_turn_is_long(broker: TimedBroker, dialect: str, name: str, form: str) -> None:
    rows = {kind.__name__: row for kind, row in ROWS[dialect].items()}
    frame = rows[name].legal if form == "legal" else rows[name].illegal
    if frame is None:
        pytest.skip("every form is legal")
    attempt = 0

    def ask() -> None:
        nonlocal attempt
        attempt += 1
        with connect(broker) as client:
            # Each attempt makes another topic.
            sent = frame.replace(b"made", b"mad%d" % attempt)
            refused = is_refusal(client.ask(sent))
            assert refused == (form == "illegal")
            assert client.ask(PING) == b"\xff"

    turn = broker.measure(ask)
    print(dialect, name, form, turn)
    assert turn.short, turn


def is_refusal(answer: bytes) -> bool:
    return answer[0] == 0xFE or b'"type":"Error"' in answer[:40]


@pytest.mark.parametrize(
    "frame",
    [
        framed(b"[" * BIG),
        framed(b'{"type":' * (BIG // 8)),
        framed(b'{"type":"Fetch","topic":"t","partition":' + b"9" * BIG),
        framed(b'{"type":"Fetch","topic":"t","partition":' + b"9" * BIG + b"}"),
        framed(b'{"type":"Ping","x":"' + b"\xff" * (BIG - 30)),
        framed(b'{"type":"Ping","x":"' + "é".encode() * (BIG // 2 - 30) + b"\xff"),
        framed(b'{"' + b"\\n" * (BIG // 2 - 30) + b'":1,"type":"Ping"}'),
        framed(b'{"type":"DescribeTopic","topic":"' + b"\\u1234" * (BIG // 6 - 30) + b'"}'),
        framed(b'{"type":"' + b"x" * (BIG - 30) + b'"}'),
        framed(b" " * BIG),
        struct.pack(">I", FRAME_BYTES_MAX + 1),
    ],
    ids=[
        "depth",
        "objects",
        "digits",
        "number",
        "not UTF-8",
        "not UTF-8 at its end",
        "escapes in a name",
        "escapes in a value",
        "type",
        "blanks",
        "length",
    ],
)
def test_what_is_no_request_costs_little(broker: TimedBroker, frame: bytes) -> None:
    def ask() -> None:
        with connect(broker) as client:
            assert is_refusal(client.ask(frame))

    turn = broker.measure(ask)
    print(turn)
    assert turn.short, turn


@pytest.mark.parametrize(
    "frame",
    [
        framed(b"{" + b" " * (BIG - 30) + b'"type":"Ping"}'),
        framed(b'{"' + b"x" * (BIG - 30) + b'":1,"type":"Ping"}'),
        framed(b'{"type":"Ping","x":"' + b"\\n" * 500_000 + b'"}'),
        framed(b'{"type":"Ping","x":"' + "é".encode() * (BIG // 2 - 30) + b'"}'),
        framed(b'{"type":"Ping",' + b'"a":1,' * 99_000 + b'"b":1}'),
    ],
    ids=["blanks", "name", "escapes", "two bytes each", "fields"],
)
def test_large_requests_that_say_little_cost_little(broker: TimedBroker, frame: bytes) -> None:
    def ask() -> None:
        with connect(broker) as client:
            assert not is_refusal(client.ask(frame))

    turn = broker.measure(ask)
    print(turn)
    assert turn.short, turn


PIPELINED = {
    "commits": [
        packed(0x03, f"pipe-{number}", WIDE, tail=numbers(0, 1, wide=1)) for number in range(8_000)
    ],
    "creations": [packed(0x05, f"pipe-{number}", tail=numbers(1)) for number in range(60)],
    "refusals": [text(type="Fetch", topic="absent", partition=0, offset=0, max_bytes=1)] * 300,
    "fetches": [packed(0x02, "", WIDE, tail=numbers(1, 0, FRAME_BYTES_MAX, wide=1))] * 20,
    "listings": [packed(0x06)] * 100,
}


@pytest.mark.parametrize("name", PIPELINED)
def test_requests_that_come_together(broker: TimedBroker, name: str) -> None:
    frames = PIPELINED[name]

    def ask() -> None:
        with connect(broker) as client:
            client.socket.sendall(b"".join(frames))
            for _ in frames:
                client.receive()

    turn = broker.measure(ask)
    print(name, turn)
    assert turn.short, turn


def test_many_records_that_are_too_large_for_their_topic(broker: TimedBroker) -> None:
    """Each is refused, since a run of requests is refused whole."""
    create_topic(broker, "narrow", 1, {"max.message.bytes": "10"})
    requests = 40_000

    def ask() -> None:
        with connect(broker) as client:
            sending = threading.Thread(
                target=client.socket.sendall, args=(produce("narrow", 0, [b"x"]) * requests,)
            )
            sending.start()
            assert {client.receive()[:1] for _ in range(requests)} == {b"\xfe"}
            sending.join()

    turn = broker.measure(ask)
    print(turn)
    assert turn.short, turn


def test_metrics_of_many_offsets(broker: TimedBroker) -> None:
    """A binary commit may name any partition, so one group may have any number of them."""
    commits = [packed(0x03, "large", "nowhere", tail=numbers(n, n, wide=1)) for n in range(60_000)]
    commits += [packed(0x03, f"one-{n}", WIDE, tail=numbers(0, n, wide=1)) for n in range(60_000)]

    with connect(broker) as client:
        sending = threading.Thread(target=client.socket.sendall, args=(b"".join(commits),))
        sending.start()
        assert {client.receive() for _ in commits} == {b"\x03\x01"}
        sending.join()
        turn = broker.measure(lambda: client.ask(packed(0x09)))
    print(turn)
    assert turn.short, turn

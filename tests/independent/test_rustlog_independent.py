"""Every request and every error of RustLog's protocol document, byte for byte, on a real broker.

The driver was written from the document alone, so a mistake that broker and shipped client share
shows here.  Codes 500, 503 and 507 are missing: no client can provoke them.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
import rustlog_socket as rustlog
from rustlog_socket import Connection, frame
from stage import Stage

pytestmark = pytest.mark.clients

PING = b'{"type":"Ping"}'
PONG = b'{"type":"Pong"}'

METRICS = {
    "counter": (
        "messages_produced_total", "messages_fetched_total", "bytes_in_total", "bytes_out_total",
        "throttled_consumers_total",
        "slow_consumers_total", "segments_deleted_total", "compaction_segments_rewritten_total",
        "bytes_reclaimed_total", "compaction_runs_total", "compaction_skipped_segments_total",
        "retention_noop_runs_total", "checkpoint_corruption_total",
        "compaction_records_dropped_total", "compaction_bytes_rewritten_total",
    ),
    "gauge": (
        "active_connections", "consumer_lag", "fetch_latency_ns_p50", "fetch_latency_ns_p95",
        "fetch_latency_ns_p99", "produce_latency_ns_p50", "produce_latency_ns_p95",
        "produce_latency_ns_p99",
    ),
}  # fmt: skip


@pytest.fixture
def connection(rustlog_stage: Stage) -> Iterator[Connection]:
    with Connection(rustlog_stage.port) as opened:
        yield opened


@pytest.fixture
def topic(request: pytest.FixtureRequest, connection: Connection) -> str:
    """A topic of two partitions for this test alone."""
    name: str = "".join(c if c.isascii() and c.isalnum() else "-" for c in request.node.name)[:200]
    answer = connection.exchange(rustlog.json_payload(rustlog.create_topic(name, 2)))
    assert answer == b'{"type":"CreateTopicResponse","success":true,"partitions_created":2}'
    return name


def refused(connection: Connection, message: rustlog.Json, code: int) -> rustlog.Json:
    """Section "Error Response Format": all four fields, and the connection goes on."""
    answer = connection.ask(message)
    assert list(answer) == ["type", "code", "message", "details"], answer
    assert (answer["type"], answer["code"]) == ("Error", code), answer
    assert isinstance(answer["message"], str)
    assert answer["details"] is None or isinstance(answer["details"], dict)
    assert connection.exchange(PING) == PONG
    return answer


def topic_names(connection: Connection) -> list[str]:
    return [entry["name"] for entry in connection.ask(rustlog.list_topics())["topics"]]


# Frames


def test_ping_is_answered_byte_for_byte(connection: Connection) -> None:
    connection.send(bytes.fromhex("0000000f") + PING)
    assert connection.receive() == PONG


def test_the_example_frame_is_served_at_its_true_length(connection: Connection) -> None:
    """Section "JSON Payload Format", example; it prints 74 bytes, where there are 78."""
    example = b'{"type":"Produce","topic":"logs","partition":0,"records":["SGVsbG8gV29ybGQ="]}'
    assert rustlog.json_payload(rustlog.produce("logs", 0, [b"Hello World"])) == example
    connection.ask(rustlog.create_topic("logs", 1))
    connection.send(bytes.fromhex("0000004e") + example)
    assert connection.receive() == b'{"type":"ProduceResponse","base_offset":0,"record_count":1}'


def test_a_frame_may_come_byte_by_byte(connection: Connection) -> None:
    for byte in frame(PING):
        connection.send(bytes([byte]))
    assert connection.receive() == PONG


def test_answers_come_in_the_order_of_requests(connection: Connection, topic: str) -> None:
    requests = [rustlog.produce(topic, 0, [b"%d" % number]) for number in range(50)]
    connection.send(b"".join(frame(rustlog.json_payload(request)) for request in requests))
    for number in range(50):
        answer = rustlog.parse(connection.receive())
        assert answer == {"type": "ProduceResponse", "base_offset": number, "record_count": 1}


def test_the_largest_frame_is_served(connection: Connection) -> None:
    assert connection.exchange(PING.ljust(rustlog.FRAME_BYTES_MAX)) == PONG


@pytest.mark.parametrize("length", [0, rustlog.FRAME_BYTES_MAX + 1, 0xFFFF_FFFF])
def test_a_length_out_of_bounds_ends_the_connection(connection: Connection, length: int) -> None:
    """Sections "Frame parsing algorithm" and "Connection Error Handling"."""
    assert connection.exchange(PING) == PONG
    connection.send(struct.pack(">I", length))
    answer = rustlog.parse(connection.receive())
    assert (answer["type"], answer["code"]) == ("Error", 400)
    assert connection.is_closed_by_broker()


@pytest.mark.parametrize(
    "payload",
    [
        b"{not json",
        b'{"type":"Ping"',
        b'{"type":"Ping"} more',
        b'{"type":"Ping\xff"}',
        b'{"type":"Produce","topic":"logs","partition":0,"records":["SGVsbG8gV29ybG',
    ],
)
def test_what_is_no_json_ends_the_connection(connection: Connection, payload: bytes) -> None:
    """Section "Connection Error Handling": invalid UTF-8, malformed JSON."""
    answer = rustlog.parse(connection.exchange(payload))
    assert (answer["type"], answer["code"]) == ("Error", 400)
    assert connection.is_closed_by_broker()


@pytest.mark.parametrize("payload", [b"[]", b'"Ping"', b"12", b"true", b"null"])
def test_the_root_must_be_an_object(connection: Connection, payload: bytes) -> None:
    """Section "JSON Payload Format", 3."""
    answer = rustlog.parse(connection.exchange(payload))
    assert (answer["type"], answer["code"]) == ("Error", 400)


def test_a_client_may_come_back_after_a_disconnect(rustlog_stage: Stage, topic: str) -> None:
    with Connection(rustlog_stage.port) as half:
        half.send(frame(rustlog.json_payload(rustlog.produce(topic, 0, [b"half"])))[:-1])
    with Connection(rustlog_stage.port) as whole:
        assert whole.ask(rustlog.fetch(topic, 0, 0))["records"] == []


# Produce and Fetch


def test_the_examples_of_produce_and_fetch(connection: Connection) -> None:
    """Sections "Produce Request" and "Fetch Response", with their own records."""
    connection.ask(rustlog.create_topic("user-events", 1))
    example: rustlog.Json = {
        "type": "Produce",
        "topic": "user-events",
        "partition": 0,
        "records": [
            "eyJ1c2VyIjoiYWxpY2UiLCJhY3Rpb24iOiJsb2dpbiJ9",
            "eyJ1c2VyIjoiYm9iIiwiYWN0aW9uIjoic2lnbnVwIn0=",
        ],
    }
    values = [b'{"user":"alice","action":"login"}', b'{"user":"bob","action":"signup"}']
    assert rustlog.produce("user-events", 0, values) == example
    before_us = time.time_ns() // 1000 - 5_000_000
    answer = connection.exchange(rustlog.json_payload(example))
    assert answer == b'{"type":"ProduceResponse","base_offset":0,"record_count":2}'
    fetched = connection.exchange(rustlog.json_payload(rustlog.fetch("user-events", 0, 0)))
    stamps = [record["timestamp"] for record in json.loads(fetched)["records"]]
    assert all(before_us <= stamp <= time.time_ns() // 1000 + 5_000_000 for stamp in stamps)
    assert fetched == rustlog.json_payload(
        {
            "type": "FetchResponse",
            "records": [
                {"offset": offset, "timestamp": stamps[offset], "payload": payload}
                for offset, payload in enumerate(example["records"])
            ],
            "next_offset": 2,
        }
    )


def test_offsets_are_consecutive_in_each_partition(connection: Connection, topic: str) -> None:
    for partition, base in ((0, 0), (0, 3), (1, 0), (0, 6)):
        answer = connection.ask(rustlog.produce(topic, partition, [b"a", b"b", b"c"]))
        assert (answer["base_offset"], answer["record_count"]) == (base, 3)
    answer = connection.ask(rustlog.fetch(topic, 0, 4))
    assert [record["offset"] for record in answer["records"]] == [4, 5, 6, 7, 8]
    assert answer["next_offset"] == 9


def test_every_byte_comes_back(connection: Connection, topic: str) -> None:
    values = [b"", bytes(range(256)), "Grüße, 世界".encode(), b"\0" * 3, b"x" * 2_000_000]
    connection.ask(rustlog.produce(topic, 0, values))
    answer = connection.ask(rustlog.fetch(topic, 0, 0, max_bytes=10_000_000))
    assert [rustlog.record_value(record["payload"]) for record in answer["records"]] == values


def test_the_largest_record_a_frame_can_hold_comes_back(connection: Connection, topic: str) -> None:
    room = rustlog.FRAME_BYTES_MAX - 600  # The answer has more words around the record.
    value = b"r" * (room // 4 * 3)
    assert connection.ask(rustlog.produce(topic, 0, [value]))["record_count"] == 1
    (record,) = connection.ask(rustlog.fetch(topic, 0, 0, max_bytes=1))["records"]
    assert rustlog.record_value(record["payload"]) == value


def test_a_batch_has_at_most_a_thousand_records(connection: Connection, topic: str) -> None:
    """Section "Produce Request", validation rules."""
    refused(connection, rustlog.produce(topic, 0, [b"r"] * 1001), 400)
    answer = connection.ask(rustlog.produce(topic, 0, [b"r"] * 1000))
    assert answer == {"type": "ProduceResponse", "base_offset": 0, "record_count": 1000}


def test_max_bytes_is_a_soft_limit(connection: Connection, topic: str) -> None:
    """Section "Fetch Request": stops near the limit, and may slightly exceed it."""
    connection.ask(rustlog.produce(topic, 0, [b"v" * 1000] * 20))
    answer = connection.ask(rustlog.fetch(topic, 0, 0, max_bytes=5000))
    count = len(answer["records"])
    assert 1 <= count <= 6
    assert answer["next_offset"] == count
    assert len(connection.ask(rustlog.fetch(topic, 0, 0, max_bytes=1))["records"]) == 1
    everything = connection.ask(rustlog.fetch(topic, 0, 0, max_bytes=2**64 - 1))
    assert everything["next_offset"] == 20


@pytest.mark.parametrize("offset", [2, 3, 5000, 2**63, 2**64 - 1])
def test_beyond_the_end_there_is_nothing(connection: Connection, topic: str, offset: int) -> None:
    """Section "Fetch Request": empty response if `offset` beyond high watermark."""
    connection.ask(rustlog.produce(topic, 0, [b"a", b"b"]))
    answer = connection.exchange(rustlog.json_payload(rustlog.fetch(topic, 0, offset)))
    assert answer == b'{"type":"FetchResponse","records":[],"next_offset":%d}' % offset


def test_a_group_does_not_move_a_fetch(connection: Connection, topic: str) -> None:
    """Section "Fetch Request": the group is for metrics, not isolation."""
    connection.ask(rustlog.produce(topic, 0, [b"a", b"b", b"c"]))
    connection.ask(rustlog.offset_commit("readers", topic, 0, 2))
    answer = connection.ask(rustlog.fetch(topic, 0, 1, group_id="readers"))
    assert [record["offset"] for record in answer["records"]] == [1, 2]


# Consumer groups


def test_commits_are_kept_apart(connection: Connection, topic: str) -> None:
    """Sections "Offset Commit Request" and "Offset Fetch Response"."""
    commit = rustlog.json_payload(rustlog.offset_commit("analytics-pipeline", topic, 0, 150))
    assert connection.exchange(commit) == b'{"type":"OffsetCommitResponse","success":true}'
    for group, partition, expected in (
        ("analytics-pipeline", 0, b"150"),
        ("analytics-pipeline", 1, b"null"),
        ("another", 0, b"null"),
    ):
        question = rustlog.json_payload(rustlog.offset_fetch(group, topic, partition))
        told = connection.exchange(question)
        assert told == b'{"type":"OffsetFetchResponse","offset":%s}' % expected
    connection.ask(rustlog.offset_commit("analytics-pipeline", topic, 0, 7))
    answer = connection.ask(rustlog.offset_fetch("analytics-pipeline", topic, 0))
    assert answer == {"type": "OffsetFetchResponse", "offset": 7}


@pytest.mark.parametrize(("name", "partition"), [("nowhere", 0), (None, 2), (None, 2**32 - 1)])
def test_a_commit_to_nowhere_has_no_success(
    connection: Connection, topic: str, name: str | None, partition: int
) -> None:
    """Section "Offset Commit Response": false if topic/partition doesn't exist."""
    commit = rustlog.offset_commit("readers", name or topic, partition, 1)
    answer = connection.exchange(rustlog.json_payload(commit))
    assert answer == b'{"type":"OffsetCommitResponse","success":false}'
    answer = connection.exchange(
        rustlog.json_payload(rustlog.offset_fetch("readers", name or topic, partition))
    )
    assert answer == b'{"type":"OffsetFetchResponse","offset":null}'


def test_the_largest_kept_offset_can_be_committed(connection: Connection, topic: str) -> None:
    assert connection.ask(rustlog.offset_commit("far", topic, 0, 2**63 - 1))["success"] is True
    assert connection.ask(rustlog.offset_fetch("far", topic, 0))["offset"] == 2**63 - 1


@pytest.mark.parametrize("offset", [2**63, 2**64 - 1])
def test_any_u64_can_be_committed(connection: Connection, topic: str, offset: int) -> None:
    """Section "Offset Commit Request": "offset" is a u64."""
    answer = connection.ask(rustlog.offset_commit("far", topic, 0, offset))
    assert answer == {"type": "OffsetCommitResponse", "success": True}
    assert connection.ask(rustlog.offset_fetch("far", topic, 0))["offset"] == offset
    connection.ask(rustlog.offset_commit("far", topic, 0, 5))
    assert connection.ask(rustlog.offset_fetch("far", topic, 0))["offset"] == 5


def test_more_than_a_u64_is_refused(connection: Connection, topic: str) -> None:
    refused(connection, rustlog.offset_commit("far", topic, 0, 2**64), 400)


# Topics


def test_topics_are_listed_and_described(connection: Connection, topic: str) -> None:
    connection.ask(rustlog.produce(topic, 1, [b"a", b"b"]))
    listed = connection.ask(rustlog.list_topics())
    assert listed["type"] == "ListTopicsResponse"
    assert {"name": topic, "partition_count": 2} in listed["topics"]
    assert all(set(entry) == {"name", "partition_count"} for entry in listed["topics"])
    name = topic.encode()
    partitions = [
        b'{"partition":0,"high_watermark":0,"log_start_offset":0,"segment_count":1}',
        b'{"partition":1,"high_watermark":2,"log_start_offset":0,"segment_count":1}',
    ]
    described = connection.exchange(rustlog.json_payload(rustlog.describe_topic(topic)))
    assert described == (
        b'{"type":"DescribeTopicResponse","topic":"%s","partitions":[%s]}'
        % (name, b",".join(partitions))
    )
    one = connection.exchange(rustlog.json_payload(rustlog.describe_partition(topic, 1)))
    assert one == (
        b'{"type":"DescribePartitionResponse","topic":"%s",%s' % (name, partitions[1][1:])
    )


def test_a_topic_is_created_once(connection: Connection, topic: str) -> None:
    """Section "Create Topic Request": topic must not already exist."""
    answer = refused(connection, rustlog.create_topic(topic, 2), 400)
    assert answer["message"] == f"Topic '{topic}' already exists"


@pytest.mark.parametrize("count", [0, 1001, 2**32 - 1, 2**32])
def test_partitions_out_of_bounds_are_refused(connection: Connection, count: int) -> None:
    """Section "Create Topic Request": 1-1000 partitions."""
    refused(connection, rustlog.create_topic(f"partitions-{count}", count), 400)
    assert f"partitions-{count}" not in topic_names(connection)


def test_a_thousand_partitions_are_made(connection: Connection) -> None:
    answer = connection.ask(rustlog.create_topic("thousand", 1000))
    assert answer["partitions_created"] == 1000
    last = connection.ask(rustlog.describe_topic("thousand"))["partitions"][-1]
    assert last["partition"] == 999
    assert connection.ask(rustlog.produce("thousand", 999, [b"r"]))["base_offset"] == 0


@pytest.mark.parametrize("name", ["a", "A-Z_a-z_0-9", "-", "_", "n" * 249])
def test_good_names(connection: Connection, name: str) -> None:
    """Section "Create Topic Request": alphanumeric plus underscore/hyphen."""
    assert connection.ask(rustlog.create_topic(name, 1))["success"] is True
    assert connection.ask(rustlog.describe_topic(name))["topic"] == name


@pytest.mark.parametrize("length", [250, 255])
def test_the_longest_names(connection: Connection, length: int) -> None:
    """Section "Create Topic Request": 1-255 characters."""
    answer = connection.ask(rustlog.create_topic("l" * length, 1))
    assert answer == {"type": "CreateTopicResponse", "success": True, "partitions_created": 1}


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a/b", "..", "ü", "n" * 256, "a\0", "a\n"])
def test_bad_names(connection: Connection, name: str) -> None:
    refused(connection, rustlog.create_topic(name, 1), 400)
    assert name not in topic_names(connection)


def test_what_is_listed_can_be_asked_for(rustlog_stage: Stage, connection: Connection) -> None:
    """Section "List Topics Request/Response", also for names that only other protocols give."""
    rustlog_stage.make_topic("dotted.name", {})
    names = topic_names(connection)
    absent = connection.ask(rustlog.describe_topic("absent"))
    assert names == absent["details"]["available_topics"]
    for name in names:
        answer = connection.ask(rustlog.describe_topic(name))
        assert answer["type"] == "DescribeTopicResponse", f"{name}: {answer}"


def test_metrics(connection: Connection) -> None:
    """Section "Message Type Enumeration": MetricsFetch, with the original's names."""
    answer = connection.ask(rustlog.metrics_fetch())
    assert list(answer) == ["type", "metrics"]
    assert answer["type"] == "MetricsFetchResponse"
    lines = answer["metrics"].split("\n")
    assert lines[-1] == ""
    for kind, names in METRICS.items():
        for name in names:
            position = lines.index(f"# TYPE {name} {kind}")
            assert lines[position - 1].startswith(f"# HELP {name} ")


def test_metrics_count(connection: Connection, topic: str) -> None:
    def value(name: str) -> float:
        text = connection.ask(rustlog.metrics_fetch())["metrics"]
        (line,) = (line for line in text.splitlines() if line.startswith(f"{name} "))
        return float(line.split()[1])

    produced, fetched = value("messages_produced_total"), value("messages_fetched_total")
    connection.ask(rustlog.produce(topic, 0, [b"a", b"b", b"c"]))
    connection.ask(rustlog.fetch(topic, 0, 1))
    assert value("messages_produced_total") == produced + 3
    assert value("messages_fetched_total") == fetched + 2


# Errors


@pytest.mark.parametrize(
    "message",
    [
        rustlog.produce("nonexistent", 0, [b"r"]),
        rustlog.produce("nonexistent", 0, []),
        rustlog.fetch("nonexistent", 0, 0),
        rustlog.describe_topic("nonexistent"),
        rustlog.describe_partition("nonexistent", 0),
    ],
    ids=lambda message: message["type"],
)
def test_404_names_the_topics_there_are(
    connection: Connection, topic: str, message: rustlog.Json
) -> None:
    """Section "Error Codes", first example."""
    names = topic_names(connection)
    assert topic in names
    answer = connection.exchange(rustlog.json_payload(message))
    assert answer == rustlog.json_payload(
        {
            "type": "Error",
            "code": 404,
            "message": "Topic 'nonexistent' not found",
            "details": {"available_topics": names},
        }
    )
    assert "nonexistent" not in topic_names(connection)


@pytest.mark.parametrize("partition", [2, 2**32 - 1])
def test_405_is_a_missing_partition(connection: Connection, topic: str, partition: int) -> None:
    refused(connection, rustlog.produce(topic, partition, [b"r"]), 405)
    refused(connection, rustlog.fetch(topic, partition, 0), 405)
    refused(connection, rustlog.describe_partition(topic, partition), 405)


def test_413_is_a_record_too_large_for_its_topic(
    rustlog_stage: Stage, connection: Connection
) -> None:
    rustlog_stage.make_topic("small-records", {"max.message.bytes": "1000"})
    refused(connection, rustlog.produce("small-records", 0, [b"s", b"r" * 2000]), 413)
    assert connection.ask(rustlog.fetch("small-records", 0, 0))["records"] == []
    answer = connection.ask(rustlog.produce("small-records", 0, [b"s"]))
    assert answer["base_offset"] == 0


def test_416_tells_the_range(rustlog_stage: Stage, connection: Connection, topic: str) -> None:
    """Sections "Fetch Request" (before log start offset) and "Error Codes", second example."""
    connection.ask(rustlog.produce(topic, 0, [b"%d" % number for number in range(10)]))
    rustlog_stage.delete_records(topic, 0, 4)
    answer = connection.exchange(rustlog.json_payload(rustlog.fetch(topic, 0, 3)))
    assert answer == (
        b'{"type":"Error","code":416,"message":"Offset 3 out of range",'
        b'"details":{"valid_range":{"start":4,"end":10},"high_watermark":10}}'
    )
    records = connection.ask(rustlog.fetch(topic, 0, 4))["records"]
    assert [record["offset"] for record in records] == [4, 5, 6, 7, 8, 9]
    partition = connection.ask(rustlog.describe_partition(topic, 0))
    assert (partition["log_start_offset"], partition["high_watermark"]) == (4, 10)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"type": "Bogus"},
        {"type": "ping"},
        {"type": 10},
        {"type": None},
        {"type": "ProduceResponse", "base_offset": 0, "record_count": 0},
    ],
)
def test_400_is_an_unknown_type(connection: Connection, message: rustlog.Json) -> None:
    """Section "Connection Error Handling": recoverable."""
    refused(connection, message, 400)


@pytest.mark.parametrize(
    "change",
    [
        {"topic": 5},
        {"topic": None},
        {"partition": -1},
        {"partition": 0.5},
        {"partition": True},
        {"partition": "0"},
        {"partition": 2**32},
        {"records": "cg=="},
        {"records": [5]},
        {"records": [None]},
        {"records": ["?"]},
        {"records": ["cg"]},
        {"records": ["cmVj\nb3Jk"]},
        {"records": ["cg==", "_w=="]},
    ],
)
def test_400_is_a_bad_field(connection: Connection, topic: str, change: dict[str, Any]) -> None:
    """Section "Connection Error Handling": recoverable, and nothing is written."""
    refused(connection, rustlog.produce(topic, 0, [b"r"]) | change, 400)
    assert connection.ask(rustlog.describe_partition(topic, 0))["high_watermark"] == 0


@pytest.mark.parametrize(
    "message",
    [
        rustlog.produce("t", 0, []),
        rustlog.fetch("t", 0, 0),
        rustlog.offset_commit("g", "t", 0, 0),
        rustlog.offset_fetch("g", "t", 0),
        rustlog.create_topic("missing-field", 1),
        rustlog.describe_topic("t"),
        rustlog.describe_partition("t", 0),
    ],
    ids=lambda message: message["type"],
)
def test_400_is_a_missing_field(connection: Connection, message: rustlog.Json) -> None:
    for field in message:
        # A Fetch without a group is no harm: the group is informative.
        if field not in ("type", "group_id"):
            rest = {name: value for name, value in message.items() if name != field}
            refused(connection, rest, 400)


@pytest.mark.parametrize("offset", [-1, 2**64, 1.0, "0", True, None])
def test_400_is_an_offset_that_is_none(connection: Connection, topic: str, offset: Any) -> None:
    refused(connection, rustlog.fetch(topic, 0, offset), 400)
    refused(connection, rustlog.offset_commit("readers", topic, 0, offset), 400)


def test_fields_of_later_versions_are_ignored(connection: Connection, topic: str) -> None:
    """Section "Wire Format Evolution": optional fields may be added to any message."""
    later = {"trace": {"id": [1, None, "ü"]}, "version": 2}
    assert connection.ask(rustlog.ping() | later) == {"type": "Pong"}
    assert connection.ask(later | rustlog.produce(topic, 0, [b"r"]))["record_count"] == 1

"""RustLog in packed fields, as the original server and its clients speak it, byte for byte.

Both dialects share a port and even a connection, so their crossing is tested here too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import rustlog_captured
import rustlog_socket as rustlog
from captured import exchanges
from rustlog_socket import Connection, frame
from stage import Stage, stage_of
from tests.server.broker_process import BrokerProcess

pytestmark = pytest.mark.clients

PING = b"\xff"
CREATED = bytes([rustlog.CREATE_TOPIC, 1])
COMMITTED = bytes([rustlog.OFFSET_COMMIT, 1])

# Every request, and its parts: how long each is, and what is said when it is cut off.
TOPIC = ((2, "missing topic length"), (1, "truncated topic"))
GROUP = ((2, "missing group length"), (1, "truncated group"))
GROUP_ID = ((2, "missing group_id length"), (1, "truncated group_id"))
PARTITION = (4, "missing partition")
OFFSET = (8, "missing offset")
LAYOUTS = {
    "Produce": (
        rustlog.packed_produce("t", 0, [b"r"]),
        (*TOPIC, PARTITION, (4, "missing record count"), (4, "truncated record length"),
         (1, "truncated record")),
    ),
    "Fetch": (
        rustlog.packed_fetch("t", 0, 0, group="g"),
        (*GROUP_ID, *TOPIC, PARTITION, OFFSET, (4, "missing max_bytes")),
    ),
    "OffsetCommit": (
        rustlog.packed_offset_commit("g", "t", 0, 0),
        (*GROUP, *TOPIC, PARTITION, OFFSET),
    ),
    "OffsetFetch": (rustlog.packed_offset_fetch("g", "t", 0), (*GROUP, *TOPIC, PARTITION)),
    "CreateTopic": (
        rustlog.packed_create_topic("t", 1),
        (*TOPIC, (4, "missing partition count")),
    ),
    "DescribeTopic": (rustlog.packed_describe_topic("t"), TOPIC),
    "DescribePartition": (rustlog.packed_describe_partition("t", 0), (*TOPIC, PARTITION)),
}  # fmt: skip


@pytest.fixture
def connection(rustlog_stage: Stage) -> Iterator[Connection]:
    with Connection(rustlog_stage.port) as opened:
        yield opened


@pytest.fixture
def topic(request: pytest.FixtureRequest, connection: Connection) -> str:
    """A topic of two partitions for this test alone."""
    name: str = "packed-" + request.node.name.translate({ord(c): "-" for c in "[]."})
    assert connection.exchange(rustlog.packed_create_topic(name, 2)) == CREATED
    return name


def test_the_captured_conversation(rustlog_stage: Stage) -> None:
    said = list(exchanges(rustlog_captured.CONVERSATION))
    assert len(said) == len(rustlog_stage.recorded)
    for exchange, answer in zip(said, rustlog_stage.recorded, strict=True):
        assert answer.hex() == exchange.answer.hex(), exchange.name


def test_odd_names(tmp_path: Path) -> None:
    """On a broker of its own: what was captured ends with the list of all topics there were."""
    with (
        BrokerProcess(tmp_path, "--listen", "rustlog=127.0.0.1:0") as broker,
        Connection(stage_of(broker, "rustlog").port) as connection,
    ):
        assert connection.exchange(rustlog.packed_create_topic("demo", 2)) == CREATED
        for exchange in exchanges(rustlog_captured.ODD_NAMES):
            assert connection.exchange(exchange.request[4:]) == exchange.answer[4:], exchange.name
        for name in ("", "a b/../é"):
            produced = connection.exchange(rustlog.packed_produce(name, 0, [b"r"]))
            assert produced == struct.pack(">BQI", rustlog.PRODUCE, 0, 1)
            answer = connection.exchange(rustlog.packed_fetch(name, 0, 0))
            assert rustlog.read_packed_records(answer) == rustlog.PackedRecords([b"r"], 1)


@pytest.mark.parametrize("name", ["../..", "/", "\0\n", "x" * 300, "ü" * 32_767])
def test_names_are_not_checked(connection: Connection, name: str) -> None:
    assert connection.exchange(rustlog.packed_create_topic(name, 1)) == CREATED
    listed = connection.exchange(bytes([rustlog.LIST_TOPICS]))
    assert struct.pack(">H", len(name.encode())) + name.encode() in listed
    connection.exchange(rustlog.packed_produce(name, 0, [b"r"]))
    answer = connection.exchange(rustlog.packed_fetch(name, 0, 0))
    assert rustlog.read_packed_records(answer) == rustlog.PackedRecords([b"r"], 1)


@pytest.mark.parametrize(
    ("group", "topic", "partition", "offset"),
    [
        ("g", "nope", 0, 2**64 - 1),
        ("g", "nope", 2**32 - 1, 2**63),
        ("", "", 0, 77),
        ("g" * 65_535, "t" * 65_535, 1, 5),
    ],
    ids=["u64", "u32", "empty", "long"],
)
def test_a_commit_of_anything_is_kept(
    connection: Connection, group: str, topic: str, partition: int, offset: int
) -> None:
    commit = rustlog.packed_offset_commit(group, topic, partition, offset)
    assert connection.exchange(commit) == COMMITTED
    answer = connection.exchange(rustlog.packed_offset_fetch(group, topic, partition))
    assert answer == struct.pack(">BBQ", rustlog.OFFSET_FETCH, 1, offset)


def test_a_commit_beyond_all_offsets_is_fetched_from(connection: Connection, topic: str) -> None:
    connection.exchange(rustlog.packed_offset_commit("beyond", topic, 0, 2**64 - 1))
    answer = connection.exchange(rustlog.packed_fetch(topic, 0, 0, group="beyond"))
    assert rustlog.read_packed_records(answer) == rustlog.PackedRecords([], 2**64 - 1)


@pytest.mark.parametrize("said", [rustlog_captured.ZERO_LENGTH, rustlog_captured.TOO_LARGE])
@pytest.mark.parametrize("after_ping", [False, True])
def test_lengths_out_of_bounds(connection: Connection, said: str, after_ping: bool) -> None:
    (exchange,) = exchanges(said)
    if after_ping:
        assert connection.exchange(PING) == PING
    connection.send(exchange.request)
    assert frame(connection.receive()) == exchange.answer
    assert connection.is_closed_by_broker()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_body_cut_anywhere(connection: Connection, name: str) -> None:
    whole, parts = LAYOUTS[name]
    assert len(whole) == 1 + sum(size for size, _ in parts)
    position = 1
    for size, text in parts:
        for length in range(position, position + size):
            answer = connection.exchange(whole[:length])
            expected = rustlog.packed_error(2, f"Decode error: decode error: {text}")
            assert answer == expected, f"{name} of {length} bytes: {answer!r}"
        position += size
    assert connection.exchange(PING) == PING


@pytest.mark.parametrize("kind", [0x00, 0x0A, 0x0B, 0x0C, 0x41, 0x80, 0x81, 0xFD, 0xFE])
def test_unknown_types(connection: Connection, kind: int) -> None:
    expected = rustlog.packed_error(2, f"Decode error: unknown request type: {kind}")
    assert connection.exchange(bytes([kind])) == expected
    assert connection.exchange(PING) == PING


@pytest.mark.parametrize("count", [2, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF])
def test_a_count_of_records_that_are_not_there(
    connection: Connection, topic: str, count: int
) -> None:
    whole = bytearray(rustlog.packed_produce(topic, 0, [b"r"]))
    struct.pack_into(">I", whole, len(whole) - 9, count)
    answer = connection.exchange(bytes(whole))
    what = "Decode error: decode error: truncated record length"
    assert answer == rustlog.packed_error(2, what)
    assert connection.exchange(rustlog.packed_fetch(topic, 0, 0)) == b"\x02" + bytes(12)


def test_bytes_after_a_request_are_ignored(connection: Connection, topic: str) -> None:
    for request in (
        rustlog.packed_produce(topic, 0, [b"r"]),
        rustlog.packed_fetch(topic, 0, 0),
        rustlog.packed_offset_commit("g", topic, 0, 1),
        rustlog.packed_offset_fetch("g", topic, 0),
        rustlog.packed_describe_topic(topic),
        rustlog.packed_describe_partition(topic, 0),
        bytes([rustlog.LIST_TOPICS]),
        bytes([rustlog.METRICS_FETCH]),
        PING,
    ):
        answer = connection.exchange(request + b"junk{}")
        assert answer[0] == request[0], f"{request!r}: {answer!r}"


def test_pings_in_one_write(connection: Connection) -> None:
    connection.send(bytes.fromhex("00000001ff" * 3))
    assert [connection.receive() for _ in range(3)] == [PING] * 3


def test_records_come_back(connection: Connection, topic: str) -> None:
    values = [b"", bytes(range(256)), b"x" * 100_000]
    produced = connection.exchange(rustlog.packed_produce(topic, 1, values))
    assert produced == struct.pack(">BQI", rustlog.PRODUCE, 0, 3)
    produced = connection.exchange(rustlog.packed_produce(topic, 1, values))
    assert produced == struct.pack(">BQI", rustlog.PRODUCE, 3, 3)
    fetched = rustlog.read_packed_records(connection.exchange(rustlog.packed_fetch(topic, 1, 1)))
    assert fetched == rustlog.PackedRecords(values[1:] + values, 6)


def test_more_than_a_thousand_records_in_a_batch(connection: Connection, topic: str) -> None:
    """The original's clients know no limit but that of the frame."""
    produced = connection.exchange(rustlog.packed_produce(topic, 0, [b"r"] * 5000))
    assert produced == struct.pack(">BQI", rustlog.PRODUCE, 0, 5000)
    fetched = rustlog.read_packed_records(connection.exchange(rustlog.packed_fetch(topic, 0, 0)))
    assert fetched == rustlog.PackedRecords([b"r"] * 5000, 5000)


@pytest.mark.parametrize(
    ("max_bytes", "count"),
    [(0, 0), (1, 1), (21, 1), (22, 1), (43, 1), (44, 2), (65, 2), (66, 3), (0xFFFF_FFFF, 5)],
)
def test_the_budget_of_a_fetch(
    connection: Connection, topic: str, max_bytes: int, count: int
) -> None:
    """A record costs its bytes and twelve more; the first is given whatever it costs."""
    connection.exchange(rustlog.packed_produce(topic, 0, [b"0123456789"] * 5))
    answer = connection.exchange(rustlog.packed_fetch(topic, 0, 0, max_bytes))
    assert rustlog.read_packed_records(answer).next_offset == count


def test_the_largest_frames(connection: Connection) -> None:
    assert connection.exchange(rustlog.packed_create_topic("huge", 1)) == CREATED
    value = b"h" * 10_485_741
    request = rustlog.packed_produce("huge", 0, [value])
    assert len(request) == rustlog.FRAME_BYTES_MAX
    for offset in (0, 1):
        produced = connection.exchange(request)
        assert produced == struct.pack(">BQI", rustlog.PRODUCE, offset, 1)
    for max_bytes in (rustlog.FRAME_BYTES_MAX, 2 * rustlog.FRAME_BYTES_MAX):
        answer = connection.exchange(rustlog.packed_fetch("huge", 0, 0, max_bytes))
        assert len(answer) == 10_485_758
        assert rustlog.read_packed_records(answer) == rustlog.PackedRecords([value], 1)


def test_a_commit_replaces_the_offset_of_a_fetch(connection: Connection, topic: str) -> None:
    connection.exchange(rustlog.packed_produce(topic, 0, [b"a", b"b", b"c"]))
    fetch = rustlog.packed_fetch(topic, 0, 1, group="readers")
    fetched = rustlog.read_packed_records(connection.exchange(fetch))
    assert fetched == rustlog.PackedRecords([b"b", b"c"], 3)
    assert connection.exchange(rustlog.packed_offset_commit("readers", topic, 0, 2)) == COMMITTED
    fetched = rustlog.read_packed_records(connection.exchange(fetch))
    assert fetched == rustlog.PackedRecords([b"c"], 3)
    other = rustlog.packed_fetch(topic, 0, 1, group="others")
    assert rustlog.read_packed_records(connection.exchange(other)).records == [b"b", b"c"]


def test_before_the_start_of_the_log_there_is_nothing(
    rustlog_stage: Stage, connection: Connection, topic: str
) -> None:
    """The original knows no error for this, and repeats the offset it was asked for."""
    connection.exchange(rustlog.packed_produce(topic, 0, [b"a", b"b", b"c"]))
    rustlog_stage.delete_records(topic, 0, 2)
    answer = connection.exchange(rustlog.packed_fetch(topic, 0, 1))
    assert rustlog.read_packed_records(answer) == rustlog.PackedRecords([], 1)


def test_metrics(connection: Connection) -> None:
    answer = connection.exchange(bytes([rustlog.METRICS_FETCH]))
    kind, length = struct.unpack_from(">BI", answer)
    assert (kind, length) == (rustlog.METRICS_FETCH, len(answer) - 5)
    assert answer[5:].startswith(b"# HELP messages_produced_total ")


# Both dialects


@pytest.mark.parametrize("space", [b" ", b"\t", b"\n", b"\r", b"\t \r\n"])
def test_json_may_begin_with_white_space(connection: Connection, space: bytes) -> None:
    assert connection.exchange(space + b'{"type":"Ping"}') == b'{"type":"Pong"}'


def test_dialects_share_records_and_commits(connection: Connection, topic: str) -> None:
    connection.ask(rustlog.produce(topic, 0, [b"\0json"]))
    connection.exchange(rustlog.packed_produce(topic, 0, [b"\0packed"]))
    fetched = rustlog.read_packed_records(connection.exchange(rustlog.packed_fetch(topic, 0, 0)))
    assert fetched == rustlog.PackedRecords([b"\0json", b"\0packed"], 2)
    records = connection.ask(rustlog.fetch(topic, 0, 0))["records"]
    values = [rustlog.record_value(record["payload"]) for record in records]
    assert values == [b"\0json", b"\0packed"]
    connection.ask(rustlog.offset_commit("readers", topic, 0, 1))
    answer = connection.exchange(rustlog.packed_offset_fetch("readers", topic, 0))
    assert answer == struct.pack(">BBQ", rustlog.OFFSET_FETCH, 1, 1)
    connection.exchange(rustlog.packed_offset_commit("readers", topic, 0, 2))
    assert connection.ask(rustlog.offset_fetch("readers", topic, 0))["offset"] == 2


def test_dialects_alternate_on_one_connection(connection: Connection, topic: str) -> None:
    pieces = []
    for number in range(20):
        value = b"%d" % number
        pieces.append(frame(rustlog.packed_produce(topic, 0, [value])))
        pieces.append(frame(rustlog.json_payload(rustlog.produce(topic, 0, [value]))))
    connection.send(b"".join(pieces))
    for number in range(20):
        packed = struct.pack(">BQI", rustlog.PRODUCE, 2 * number, 1)
        assert connection.receive() == packed
        told = b'{"type":"ProduceResponse","base_offset":%d,"record_count":1}'
        assert connection.receive() == told % (2 * number + 1)


def test_a_bad_length_is_answered_in_the_dialect_before_it(connection: Connection) -> None:
    assert connection.ask(rustlog.ping()) == {"type": "Pong"}
    assert connection.exchange(PING) == PING
    (exchange,) = exchanges(rustlog_captured.TOO_LARGE)
    connection.send(exchange.request)
    assert frame(connection.receive()) == exchange.answer
    assert connection.is_closed_by_broker()

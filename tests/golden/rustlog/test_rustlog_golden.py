"""Conversations with the original, byte for byte, whole and cut at every position.

`captured.txt` holds what the original answered on a fresh start.  `OURS` holds every answer that
differs on purpose, and the README of the protocol says why.  In JSON there is no original: the
examples are the document's own.
"""

from __future__ import annotations

import base64
import json
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "protocols" / "rustlog"))

from rustlog_world import PING, RustLogConnection, RustLogWorld, framed, produce, text
from tests.support.unsynced import leave_unsynced

from pentalog.model.types import Partition

CAPTURED = Path(__file__).with_name("captured.txt")


def exchanges() -> list[tuple[int, bytes, bytes]]:
    found: list[tuple[int, bytes, bytes]] = []
    number, asked = 0, b""
    for line in CAPTURED.read_text().splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "#":
            number = int(rest.split()[0])
        elif kind == "C":
            asked = bytes.fromhex(rest)
        else:
            found.append((number, asked, b"" if rest == "metrics" else bytes.fromhex(rest)))
    return found


def failed(code: int, said: str) -> bytes:
    data = said.encode()
    return framed(struct.pack(">BHH", 0xFE, code, len(data)) + data)


def watermarks(*ends: int) -> bytes:
    parts = [struct.pack(">IQ", index, end) for index, end in enumerate(ends)]
    return framed(b"\x07\0\x04demo" + struct.pack(">II", len(ends), len(ends)) + b"".join(parts))


ORIGINAL = {number: answer for number, _, answer in exchanges()}
METRICS = 39
OURS: dict[int, bytes] = {
    14: framed(b"\x01" + struct.pack(">QI", 5, 0)),
    25: ORIGINAL[17],
    26: ORIGINAL[23],
    35: watermarks(5, 0),
    36: framed(b"\x08\0\x04demo" + struct.pack(">IQ", 0, 5)),
    41: text(type="Pong"),
    42: text(type="ProduceResponse", base_offset=5, record_count=1),
}
STRICT = {number: answer for number, answer in OURS.items() if number not in (25, 26)}
"""With `rustlog_strict_groups`, groups without a commit are answered as by the original."""


def talk(world: RustLogWorld, pieces_of: Any) -> dict[int, bytes]:
    """The answers to the whole conversation, its stream cut by `pieces_of`."""
    asked = exchanges()
    answers: dict[int, bytes] = {}
    # The last two end their connections.
    for part in (asked[:-1], asked[-1:]):
        peer = world.connect()
        for piece in pieces_of(b"".join(frame for _, frame, _ in part)):
            peer.feed(piece)
            peer.run()
        found = [framed(payload) for payload in peer.line.frames()]
        assert len(found) == len(part)
        assert peer.line.hung_up
        answers |= {number: answer for (number, _, _), answer in zip(part, found, strict=True)}
        peer.session.close()
    return answers


def in_pieces_of(size: int) -> Any:
    def pieces(stream: bytes) -> Iterator[bytes]:
        for start in range(0, len(stream), size):
            yield stream[start : start + size]

    return pieces


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1 << 20])
def test_captured_conversation(tmp_path: Path, size: int) -> None:
    world = RustLogWorld(tmp_path)
    answers = talk(world, in_pieces_of(size))
    assert answers.pop(METRICS)[4] == 9
    expected = {**ORIGINAL, **OURS}
    del expected[METRICS]
    assert answers == expected
    world.close()


def test_captured_conversation_with_strict_groups(tmp_path: Path) -> None:
    world = RustLogWorld(tmp_path, rustlog_strict_groups=True)
    answers = talk(world, in_pieces_of(1 << 20))
    for number in (25, 26):
        assert answers[number] == ORIGINAL[number] != OURS[number]
    assert {number: answers[number] for number in STRICT} == STRICT
    world.close()


def talk_in_halves(world: RustLogWorld, cut: int) -> dict[int, bytes]:
    """The answers to the whole conversation, each of its frames in two pieces if it has a `cut`."""
    asked = exchanges()
    answers: dict[int, bytes] = {}
    for part in (asked[:-1], asked[-1:]):
        peer = world.connect()
        for number, frame, _ in part:
            answers[number] = framed(ask_in_halves(peer, frame, cut))
        assert peer.line.hung_up
        peer.session.close()
    return answers


@pytest.fixture
def untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], RustLogWorld]:
    """Makes brokers that have seen nothing; quickly, as none of them has to outlive a crash."""
    leave_unsynced(monkeypatch)
    template = tmp_path / "template"
    RustLogWorld(template).close()
    numbers = count()

    def made() -> RustLogWorld:
        directory = tmp_path / f"{next(numbers)}"
        shutil.copytree(template, directory)
        return RustLogWorld(directory)

    return made


def test_every_exchange_cut_at_every_position(untouched: Callable[[], RustLogWorld]) -> None:
    """The state each exchange was captured in is made anew for every cut."""
    longest = max(len(frame) for _, frame, _ in exchanges())
    answers: dict[int, bytes] = {}
    for cut in range(longest):
        world = untouched()
        found = talk_in_halves(world, cut)
        world.close()
        answers = answers or found
        assert found == answers, cut
    metrics = answers.pop(METRICS)
    assert answers == {number: OURS.get(number, ORIGINAL[number]) for number in answers}
    assert metrics[4] == 9


def test_three_pings_in_one_write(tmp_path: Path) -> None:
    world = RustLogWorld(tmp_path)
    peer = world.connect()
    assert peer.asks(PING * 3) == [b"\xff"] * 3
    assert peer.line.sent() == PING * 3
    world.close()


def test_the_largest_frame(tmp_path: Path) -> None:
    world = RustLogWorld(tmp_path)
    peer = world.connect()
    peer.ask(framed(b"\x05\0\x04demo\0\0\0\x01"))
    largest = produce("demo", 0, bytes(10_485_741))
    assert len(largest) == 4 + 10_485_760
    for number in range(2):
        assert peer.ask(largest) == b"\x01" + struct.pack(">QI", number, 1)
    ask = framed(b"\x02\0\0\0\x04demo" + struct.pack(">IQI", 0, 0, 10 << 20))
    assert len(peer.ask(ask)) == 10_485_758
    twice = framed(b"\x02\0\0\0\x04demo" + struct.pack(">IQI", 0, 0, 20 << 20))
    answer = peer.ask(twice)
    assert len(answer) == 10_485_758
    assert answer[-8:] == struct.pack(">Q", 1)
    world.close()


# The document's examples

EXAMPLE_FRAME = b'{"type":"Produce","topic":"logs","partition":0,"records":["SGVsbG8gV29ybGQ="]}'
PRODUCE = (
    b'{\n  "type": "Produce",\n  "topic": "user-events", \n  "partition": 0,\n  "records": [\n'
    b'    "eyJ1c2VyIjoiYWxpY2UiLCJhY3Rpb24iOiJsb2dpbiJ9",\n'
    b'    "eyJ1c2VyIjoiYm9iIiwiYWN0aW9uIjoic2lnbnVwIn0="\n  ]\n}'
)
PRODUCED = b'{\n  "type": "ProduceResponse", \n  "base_offset": 42,\n  "record_count": 2\n}'
FETCH = (
    b'{\n  "type": "Fetch",\n  "group_id": "analytics-consumer",\n  "topic": "user-events",\n'
    b'  "partition": 0, \n  "offset": 100,\n  "max_bytes": 1048576\n}'
)
FETCHED = (
    b'{\n  "type": "FetchResponse",\n  "records": [\n    {\n      "offset": 100,\n'
    b'      "timestamp": 1641024000000000,\n      "payload": "eyJ1c2VyIjoiYWxpY2UifQ=="\n    },\n'
    b'    {\n      "offset": 101, \n      "timestamp": 1641024001000000,\n'
    b'      "payload": "eyJ1c2VyIjoiYm9iIn0="\n    }\n  ],\n  "next_offset": 102\n}'
)
COMMIT = (
    b'{\n  "type": "OffsetCommit",\n  "group": "analytics-pipeline", \n'
    b'  "topic": "user-events",\n  "partition": 0,\n  "offset": 150\n}'
)
NO_TOPIC = (
    b'{\n  "type": "Error",\n  "code": 404,\n  "message": "Topic \'nonexistent\' not found",\n'
    b'  "details": {\n    "available_topics": ["logs", "metrics", "events"]\n  }\n}'
)
OUT_OF_RANGE = (
    b'{\n  "type": "Error", \n  "code": 416,\n  "message": "Offset 5000 out of range",\n'
    b'  "details": {\n    "valid_range": {"start": 0, "end": 1250},\n'
    b'    "high_watermark": 1250\n  }\n}'
)


def compact(example: bytes) -> bytes:
    """An example without its white space, as it goes over the wire."""
    return json.dumps(json.loads(example), separators=(",", ":")).encode()


def ask_in_halves(peer: RustLogConnection, frame: bytes, cut: int) -> bytes:
    """The answer to a frame in two pieces; to all of it if it is too short for this cut."""
    if 0 < cut < len(frame):
        before = len(peer.line.frames())
        peer.feed(frame[:cut])
        peer.run()
        assert len(peer.line.frames()) == before, "nothing is answered before the last byte"
        frame = frame[cut:]
    return peer.ask(frame)


def cut_everywhere(peer: RustLogConnection, frame: bytes) -> None:
    """The same answer, wherever the frame is cut; only for what may be asked again."""
    whole = peer.ask(frame)
    for cut in range(1, len(frame)):
        assert ask_in_halves(peer, frame, cut) == whole


def produced_anew(world: RustLogWorld, topic: str, earlier: int, frame: bytes) -> set[bytes]:
    """The answers to a Produce cut everywhere, each time to a topic with so many records."""
    peer = world.connect()
    answers = set()
    for cut in range(len(frame)):
        peer.say(type="CreateTopic", topic=topic, partition_count=1)
        if earlier:
            peer.ask(produce(topic, 0, *[b"earlier"] * earlier))
        answers.add(ask_in_halves(peer, frame, cut))
        if cut < len(frame) - 1:
            world.disk.topics.delete(topic)
            peer.run()
    return answers


def test_example_frame_of_the_document(untouched: Callable[[], RustLogWorld]) -> None:
    """Its length is a misprint: 0x4a is shown, the payload has 0x4e bytes."""
    world = untouched()
    assert len(EXAMPLE_FRAME) == 0x4E
    answer = b'{"type":"ProduceResponse","base_offset":0,"record_count":1}'
    assert produced_anew(world, "logs", 0, framed(EXAMPLE_FRAME)) == {answer}
    peer = world.connect()
    assert peer.ask(framed(b"\x02\0\0\0\x04logs" + struct.pack(">IQI", 0, 0, 100)))[9:20] == (
        b"Hello World"
    )
    world.close()


def test_produce_example_of_the_document(untouched: Callable[[], RustLogWorld]) -> None:
    world = untouched()
    assert produced_anew(world, "user-events", 42, framed(PRODUCE)) == {compact(PRODUCED)}
    world.close()


def test_fetch_example_of_the_document(tmp_path: Path) -> None:
    world = RustLogWorld(tmp_path)
    peer = world.connect()
    peer.say(type="CreateTopic", topic="user-events", partition_count=1)
    peer.ask(produce("user-events", 0, *[b"earlier"] * 100))
    for record in json.loads(FETCHED)["records"]:
        world.disk.runtime.time_ms = record["timestamp"] // 1000
        payload = base64.b64decode(record["payload"])
        peer.ask(produce("user-events", 0, payload))
    assert peer.ask(framed(FETCH)) == compact(FETCHED)
    cut_everywhere(peer, framed(FETCH))
    world.close()


def test_commit_example_of_the_document(tmp_path: Path) -> None:
    world = RustLogWorld(tmp_path)
    peer = world.connect()
    asked = framed(COMMIT)
    assert peer.ask(asked) == b'{"type":"OffsetCommitResponse","success":false}'
    peer.say(type="CreateTopic", topic="user-events", partition_count=1)
    assert peer.ask(asked) == b'{"type":"OffsetCommitResponse","success":true}'
    cut_everywhere(peer, asked)
    found = peer.say(
        type="OffsetFetch", group="analytics-pipeline", topic="user-events", partition=0
    )
    assert found == {"type": "OffsetFetchResponse", "offset": 150}
    world.close()


def test_error_examples_of_the_document(tmp_path: Path) -> None:
    world = RustLogWorld(tmp_path)
    peer = world.connect()
    for name in ("logs", "metrics", "events"):
        peer.say(type="CreateTopic", topic=name, partition_count=1)
    asked = text(type="DescribeTopic", topic="nonexistent")
    expected = json.loads(NO_TOPIC)
    expected["details"]["available_topics"].sort()
    assert peer.ask(asked) == json.dumps(expected, separators=(",", ":")).encode()
    cut_everywhere(peer, asked)

    for _ in range(5):
        peer.ask(produce("logs", 0, *[b"x"] * 1250))
    world.disk.topics.trim(Partition("logs", 0), 5001)
    world.disk.topics.settle()
    asked = text(type="Fetch", group_id="", topic="logs", partition=0, offset=5000, max_bytes=9)
    expected = json.loads(OUT_OF_RANGE)
    expected["details"] = {
        "valid_range": {"start": 5001, "end": 6250},
        "high_watermark": 6250,
    }
    assert peer.ask(asked) == json.dumps(expected, separators=(",", ":")).encode()
    cut_everywhere(peer, asked)
    world.close()


JSON_CONVERSATION: list[tuple[bytes, bytes]] = [
    (b'{"type":"Ping"}', b'{"type":"Pong"}'),
    (
        b'{"type":"CreateTopic","topic":"demo","partition_count":2}',
        b'{"type":"CreateTopicResponse","success":true,"partitions_created":2}',
    ),
    (
        b'{"type":"Produce","topic":"demo","partition":0,"records":["aGVsbG8=","ZnJvbQ=="]}',
        b'{"type":"ProduceResponse","base_offset":0,"record_count":2}',
    ),
    (
        b'{"type":"Fetch","group_id":"","topic":"demo","partition":0,"offset":1,'
        b'"max_bytes":1048576}',
        b'{"type":"FetchResponse","records":[{"offset":1,"timestamp":1700000000000000,'
        b'"payload":"ZnJvbQ=="}],"next_offset":2}',
    ),
    (
        b'{"type":"Fetch","group_id":"g","topic":"demo","partition":0,"offset":2,'
        b'"max_bytes":1048576}',
        b'{"type":"FetchResponse","records":[],"next_offset":2}',
    ),
    (
        b'{"type":"OffsetFetch","group":"g","topic":"demo","partition":0}',
        b'{"type":"OffsetFetchResponse","offset":null}',
    ),
    (
        b'{"type":"OffsetCommit","group":"g","topic":"demo","partition":0,"offset":2}',
        b'{"type":"OffsetCommitResponse","success":true}',
    ),
    (
        b'{"type":"OffsetCommit","group":"g","topic":"nope","partition":0,"offset":2}',
        b'{"type":"OffsetCommitResponse","success":false}',
    ),
    (
        b'{"type":"OffsetFetch","group":"g","topic":"demo","partition":0}',
        b'{"type":"OffsetFetchResponse","offset":2}',
    ),
    (
        b'{\n  "type": "ListTopics"\n}',
        b'{"type":"ListTopicsResponse","topics":[{"name":"demo","partition_count":2}]}',
    ),
    (
        b'{"type":"ListTopics"}',
        b'{"type":"ListTopicsResponse","topics":[{"name":"demo","partition_count":2}]}',
    ),
    (
        b'{"type":"DescribeTopic","topic":"demo"}',
        b'{"type":"DescribeTopicResponse","topic":"demo","partitions":['
        b'{"partition":0,"high_watermark":2,"log_start_offset":0,"segment_count":1},'
        b'{"partition":1,"high_watermark":0,"log_start_offset":0,"segment_count":1}]}',
    ),
    (
        b'{"type":"DescribePartition","topic":"demo","partition":0}',
        b'{"type":"DescribePartitionResponse","topic":"demo","partition":0,"high_watermark":2,'
        b'"log_start_offset":0,"segment_count":1}',
    ),
    (
        b'{"type":"Produce","topic":"nope","partition":0,"records":[]}',
        b'{"type":"Error","code":404,"message":"Topic \'nope\' not found",'
        b'"details":{"available_topics":["demo"]}}',
    ),
    (
        b'{"type":"Produce","topic":"demo","partition":9,"records":["eA=="]}',
        b'{"type":"Error","code":405,"message":"Partition 9 not found in topic \'demo\'",'
        b'"details":{"partition_count":2}}',
    ),
    (
        b'{"type":"Bogus"}',
        b'{"type":"Error","code":400,"message":"Invalid request: Invalid value \'Bogus\' - '
        b'at `$.type`","details":null}',
    ),
    (
        b"{not json",
        b'{"type":"Error","code":400,"message":"Malformed JSON: JSON is malformed: object keys '
        b'must be strings (byte 1); the connection is closed","details":null}',
    ),
]


@pytest.mark.parametrize("size", [1, 5, 1 << 20])
def test_conversation_in_json(tmp_path: Path, size: int) -> None:
    world = RustLogWorld(tmp_path)
    peer = world.connect()
    stream = b"".join(framed(asked) for asked, _ in JSON_CONVERSATION)
    for piece in in_pieces_of(size)(stream):
        peer.feed(piece)
        peer.run()
    assert peer.line.frames() == [answer for _, answer in JSON_CONVERSATION]
    assert peer.line.hung_up
    world.close()


def test_conversation_in_json_cut_at_every_position(
    untouched: Callable[[], RustLogWorld],
) -> None:
    for cut in range(1, max(4 + len(asked) for asked, _ in JSON_CONVERSATION)):
        world = untouched()
        peer = world.connect()
        for asked, answer in JSON_CONVERSATION:
            assert ask_in_halves(peer, framed(asked), cut) == answer
        assert peer.line.hung_up
        world.close()

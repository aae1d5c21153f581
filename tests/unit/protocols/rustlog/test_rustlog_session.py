"""What a RustLog connection does with frames that are right, odd or wrong."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path

import pytest
from rustlog_world import (
    FRAME_BYTES_MAX,
    LIST,
    METRICS,
    PING,
    RustLogConnection,
    RustLogWorld,
    commit,
    committed,
    create,
    describe,
    failure,
    fetch,
    fetched,
    framed,
    produce,
    text,
)

from pentalog.broker.port import Committed, TopicSpec
from pentalog.kernels import batch_header
from pentalog.model import batch, compression
from pentalog.model.batch import DOOR_MASK, DOOR_SHIFT, DOORS
from pentalog.model.errors import PartitionNotFound, StorageFull
from pentalog.model.types import Ack, Horizon, Partition, Record

DEMO = Partition("demo", 0)


def encoded(*values: bytes) -> list[str]:
    return [base64.b64encode(value).decode() for value in values]


def append(world: RustLogWorld, data: bytearray, at: Partition = DEMO) -> None:
    log = world.disk.broker.log
    log.settle(log.append(at, memoryview(data)), Ack.DURABLE)
    world.disk.runtime.run()


def test_dialects_alternate_on_one_connection(peer: RustLogConnection) -> None:
    stream = create("demo", 1) + text(
        type="Produce", topic="demo", partition=0, records=encoded(b"json", b"")
    )
    stream += produce("demo", 0, b"binary") + fetch("demo", 0, 0)
    asked = {"group_id": "", "topic": "demo", "partition": 0, "offset": 0, "max_bytes": 9999}
    stream += text(type="Fetch", **asked) + PING + text(type="Ping")
    answers = peer.asks(stream)
    assert answers[0] == b"\x05\x01"
    assert json.loads(answers[1])["base_offset"] == 0
    assert answers[2] == b"\x01" + struct.pack(">QI", 2, 1)
    assert fetched(answers[3]) == ([b"json", b"", b"binary"], 3)
    found = json.loads(answers[4])
    assert [base64.b64decode(record["payload"]) for record in found["records"]] == [
        b"json",
        b"",
        b"binary",
    ]
    assert answers[5:] == [b"\xff", b'{"type":"Pong"}']


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b'\t{"type":"Ping"}', "json"),
        (b' \r\n{"type":"Ping"}', "json"),
        (b"\x09", "metrics"),
        (b"\x09 junk", "metrics"),
        (b"\x0a", 10),
        (b"\x20junk", 32),
        (b"\x00", 0),
        (b"\xfe", 254),
        (b"-1", 45),
    ],
)
def test_the_first_byte_tells_the_dialect(
    peer: RustLogConnection, payload: bytes, expected: str | int
) -> None:
    answer = peer.ask(framed(payload))
    if expected == "json":
        assert answer == b'{"type":"Pong"}'
    elif expected == "metrics":
        assert answer[0] == 9
    else:
        assert failure(answer) == (2, f"Decode error: unknown request type: {expected}")
    assert peer.ask(PING) == b"\xff"


@pytest.mark.parametrize("payload", [b"[]", b'"Ping"', b"5", b"true", b"null"])
def test_json_that_is_no_object_is_refused_and_the_line_stays(
    peer: RustLogConnection, payload: bytes
) -> None:
    said = json.loads(peer.ask(framed(payload)))
    assert (said["type"], said["code"], said["details"]) == ("Error", 400, None)
    assert "object" in said["message"]
    assert peer.ask(PING) == b"\xff"


@pytest.mark.parametrize(
    "payload",
    [
        b"{not json",
        b'{"type":"Ping"',
        b'{"type":"Bogus", ]',
        b'{"type":"Ping","extra":"\xff"}',
        b"{}}",
        b'{"type":' + b"[" * 100_000,
        b"[1,2",
    ],
)
def test_what_is_no_json_ends_the_connection(peer: RustLogConnection, payload: bytes) -> None:
    peer.feed(framed(payload) + PING)
    (answer,) = peer.line.frames()
    assert json.loads(answer)["code"] == 400
    assert peer.line.hung_up


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"type": "Bogus"},
        {"type": 5},
        {"type": "Produce"},
        {"type": "Produce", "topic": 5, "partition": 0, "records": []},
        {"type": "Produce", "topic": "demo", "partition": -1, "records": []},
        {"type": "Produce", "topic": "demo", "partition": 1.0, "records": []},
        {"type": "Produce", "topic": "demo", "partition": True, "records": []},
        {"type": "Produce", "topic": "demo", "partition": "0", "records": []},
        {"type": "Produce", "topic": "demo", "partition": 1 << 32, "records": []},
        {"type": "Produce", "topic": "demo", "partition": 0, "records": ["not base64"]},
        {"type": "Produce", "topic": "demo", "partition": 0, "records": ["aGVsbG8"]},
        {"type": "Produce", "topic": "demo", "partition": 0, "records": [None]},
        {"type": "Produce", "topic": "demo", "partition": 0, "records": "aGVsbG8="},
        {"type": "Produce", "topic": "demo", "partition": 0, "records": ["eA=="] * 1001},
        {"type": "Fetch", "topic": "demo", "partition": 0, "offset": 1 << 64, "max_bytes": 1},
        {"type": "CreateTopic", "topic": "x", "partition_count": 0},
        {"type": "CreateTopic", "topic": "x", "partition_count": 1001},
        {"type": "CreateTopic", "topic": "", "partition_count": 1},
        {"type": "CreateTopic", "topic": "a.b", "partition_count": 1},
        {"type": "CreateTopic", "topic": "x" * 256, "partition_count": 1},
        {"type": "CreateTopic", "topic": "naïve", "partition_count": 1},
        {"type": "CreateTopic", "topic": "demo", "partition_count": 1},
        {"type": "DescribeTopic", "topic": "no.such"},
        {"type": "OffsetCommit", "group": "g", "topic": "demo", "partition": 0, "offset": 1 << 64},
    ],
)
def test_wrong_fields_are_refused_with_400(
    peer: RustLogConnection, fields: dict[str, object]
) -> None:
    peer.ask(create("demo", 1))
    said = peer.say(**fields)
    assert (said["type"], said["code"]) == ("Error", 400)
    assert said["message"]
    assert not peer.line.hung_up
    assert peer.ask(fetch("demo", 0, 0)) == b"\x02" + bytes(12), "nothing was written"


def test_a_thousand_records_and_unknown_fields_are_taken(peer: RustLogConnection) -> None:
    peer.ask(create("demo", 1))
    said = peer.say(
        type="Produce", topic="demo", partition=0, records=["eA=="] * 1000, trace={"a": [1]}
    )
    assert said == {"type": "ProduceResponse", "base_offset": 0, "record_count": 1000}


def test_dots_of_other_doors_are_served_in_json(
    world: RustLogWorld, peer: RustLogConnection
) -> None:
    world.disk.topics.create(TopicSpec(name="orders.eu", partitions=1))
    asked = {"topic": "orders.eu", "partition": 0}
    assert peer.say(type="Produce", records=["eA=="], **asked)["base_offset"] == 0
    assert peer.say(type="DescribeTopic", topic="orders.eu")["partitions"][0]["partition"] == 0


def test_batches_are_atomic_and_marked(world: RustLogWorld, peer: RustLogConnection) -> None:
    peer.ask(create("demo", 1))
    peer.asks(produce("demo", 0, b"one", b"two") * 3)
    found = world.disk.broker.log.open(DEMO, 0, bytes_max=1 << 20, horizon=Horizon.END)
    header = batch_header(found.value.batches, 0)
    assert header.records == 6, "neighbouring requests share a batch"
    assert DOORS[(header.attributes & DOOR_MASK) >> DOOR_SHIFT] == "rustlog"


@pytest.mark.local_engine("a cluster takes what comes in one request as one batch")
def test_a_refused_neighbour_does_not_refuse_the_others(
    world: RustLogWorld, peer: RustLogConnection
) -> None:
    world.disk.topics.create(
        TopicSpec(name="demo", partitions=1, settings={"max.message.bytes": "1000"})
    )
    good, bad = produce("demo", 0, *[b"x" * 100] * 20), produce("demo", 0, b"y" * 2000)
    answers = peer.asks(good + bad + good)
    assert answers[0] == b"\x01" + struct.pack(">QI", 0, 20)
    code, said = failure(answers[1])
    assert code == 500
    assert "max.message.bytes" in said
    assert answers[2] == b"\x01" + struct.pack(">QI", 20, 20)

    same = {"type": "Produce", "topic": "demo", "partition": 0}
    small = text(**same, records=encoded(b"s"))
    answers = peer.asks(small + text(**same, records=encoded(b"y" * 2000)) + small)
    assert [json.loads(answer).get("code") for answer in answers] == [None, 413, None]
    assert json.loads(answers[2])["base_offset"] == 41


@pytest.mark.local_engine("replaces a part of the local engine")
def test_a_topic_that_goes_while_it_is_written_to(
    world: RustLogWorld, peer: RustLogConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.ask(create("demo", 1))

    def vanish(*_: object) -> None:
        world.disk.topics.delete("demo")
        raise PartitionNotFound("it has just been deleted")

    monkeypatch.setattr(world.disk.broker.log, "append", vanish)
    answers = peer.asks(produce("demo", 0, b"x") * 3)
    assert [failure(answer)[0] for answer in answers] == [10, 10, 10]
    peer.ask(create("demo", 1))
    record = {"type": "Produce", "topic": "demo", "partition": 0, "records": ["eA=="]}
    said = peer.say(**record)
    assert (said["code"], said["details"]) == (405, {"partition_count": 0})
    assert peer.say(**record)["code"] == 404


@pytest.mark.local_engine("counts what is answered in one turn")
def test_answers_wait_for_the_disk(world: RustLogWorld, peer: RustLogConnection) -> None:
    peer.ask(create("demo", 1))
    before = len(peer.line.frames())
    peer.feed(produce("demo", 0, b"x") + fetch("demo", 0, 0) + PING)
    assert len(peer.line.frames()) == before, "nothing is promised before the disk has it"
    other = world.connect()
    other.feed(fetch("demo", 0, 0))
    assert other.line.frames() == [], "no client sees what may still be lost"
    peer.run()
    assert fetched(other.line.frames()[0]) == ([b"x"], 1)
    answers = peer.line.frames()[before:]
    assert fetched(answers[1]) == ([b"x"], 1), "a Fetch sees what its connection produced before"
    assert answers[2] == b"\xff"


@pytest.mark.local_engine("replaces a part of the local engine")
def test_a_full_disk(
    world: RustLogWorld, peer: RustLogConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.ask(create("demo", 1))

    def refuse(*_: object) -> None:
        raise StorageFull("no space left: free some")

    monkeypatch.setattr(world.disk.broker.log, "append", refuse)
    assert failure(peer.ask(produce("demo", 0, b"x"))) == (
        500,
        "Failed to write record: no space left: free some",
    )
    said = peer.say(type="Produce", topic="demo", partition=0, records=["eA=="])
    assert (said["code"], said["message"]) == (507, "no space left: free some")


def test_fetch_goes_over_batches_of_every_kind(
    world: RustLogWorld, peer: RustLogConnection
) -> None:
    peer.ask(create("demo", 1))
    values: list[bytes] = []
    for codec in range(5):
        made = [Record(b"value %d %d" % (codec, n), b"key", (("h", b"x"),)) for n in range(10)]
        values += [record.value or b"" for record in made]
        append(world, batch.build(made, timestamp_ms=1000, codec=codec))
    append(world, batch.build([Record(None, b"gone")], timestamp_ms=-1, codec=compression.NONE))
    found, offset = [], 0
    while True:
        records, offset = fetched(peer.ask(fetch("demo", 0, offset, 200)))
        if not records:
            break
        found += records
    assert found == [*values, b""]
    assert offset == 51
    said = peer.say(
        type="Fetch", group_id="", topic="demo", partition=0, offset=49, max_bytes=1 << 20
    )
    assert said["records"] == [
        {"offset": 49, "timestamp": 1_000_000, "payload": encoded(b"value 4 9")[0]},
        {"offset": 50, "timestamp": 0, "payload": ""},
    ]


def test_hidden_records_do_not_look_like_the_end(
    world: RustLogWorld, peer: RustLogConnection
) -> None:
    peer.ask(create("demo", 1))
    who = world.disk.broker.producers.identify().value
    for round_, commit_it in enumerate((False, True)):
        data = batch.build(
            [Record(b"from transaction %d" % round_)] * 3,
            timestamp_ms=1,
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            base_sequence=3 * round_,
            transactional=True,
        )
        append(world, data)
        assert fetched(peer.ask(fetch("demo", 0, 4 * round_))) == ([], 4 * round_)
        marker = batch.build_marker(
            commit=commit_it,
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            timestamp_ms=1,
        )
        append(world, marker)
    assert fetched(peer.ask(fetch("demo", 0, 0))) == ([b"from transaction 1"] * 3, 7)
    assert fetched(peer.ask(fetch("demo", 0, 7))) == ([], 8)


def test_below_the_start(world: RustLogWorld, peer: RustLogConnection) -> None:
    peer.ask(create("demo", 1))
    for _ in range(3):
        peer.ask(produce("demo", 0, b"x"))
    world.disk.topics.trim(DEMO, 2)
    world.disk.topics.settle()
    assert fetched(peer.ask(fetch("demo", 0, 0))) == ([], 0)
    said = peer.say(
        type="Fetch", group_id="", topic="demo", partition=0, offset=1, max_bytes=1 << 20
    )
    assert said == {
        "type": "Error",
        "code": 416,
        "message": "Offset 1 out of range",
        "details": {"valid_range": {"start": 2, "end": 3}, "high_watermark": 3},
    }
    described = peer.say(type="DescribePartition", topic="demo", partition=0)
    assert (described["log_start_offset"], described["high_watermark"]) == (2, 3)


def test_offsets_beyond_any_log(peer: RustLogConnection) -> None:
    peer.ask(create("demo", 1))
    most = (1 << 64) - 1
    assert fetched(peer.ask(fetch("demo", 0, most))) == ([], most)
    said = peer.say(
        type="Fetch", group_id="", topic="demo", partition=0, offset=most, max_bytes=most
    )
    assert said == {"type": "FetchResponse", "records": [], "next_offset": most}


def test_records_too_large_for_a_frame_are_named(
    world: RustLogWorld, peer: RustLogConnection
) -> None:
    big = {"max.message.bytes": str(20 << 20)}
    world.disk.topics.create(TopicSpec(name="demo", partitions=1, settings=big))
    append(world, batch.build([Record(b"s"), Record(bytes(11 << 20))], timestamp_ms=1))
    peer.ask(produce("demo", 0, b"behind"))
    assert fetched(peer.ask(fetch("demo", 0, 0, 1 << 30))) == ([b"s"], 1)
    code, said = failure(peer.ask(fetch("demo", 0, 1, 1 << 30)))
    assert code == 4
    assert said.endswith("go on at 2")
    asked = {"group_id": "", "topic": "demo", "partition": 0, "offset": 1, "max_bytes": 1 << 30}
    assert peer.say(type="Fetch", **asked)["code"] == 413
    assert fetched(peer.ask(fetch("demo", 0, 2))) == ([b"behind"], 3)


def test_replies_in_json_fit_a_frame(peer: RustLogConnection) -> None:
    peer.ask(create("demo", 1))
    for _ in range(3):
        peer.ask(produce("demo", 0, *[bytes(99_000)] * 50))
    asked = {"group_id": "", "topic": "demo", "partition": 0, "max_bytes": 1 << 40}
    offset = count = 0
    while True:
        payload = peer.ask(text(type="Fetch", offset=offset, **asked))
        assert len(payload) <= FRAME_BYTES_MAX
        said = json.loads(payload)
        if not said["records"]:
            break
        count += len(said["records"])
        offset = said["next_offset"]
    assert (count, offset) == (150, 150)


def test_commits_are_durable_and_shared(world: RustLogWorld, peer: RustLogConnection) -> None:
    peer.ask(create("demo", 2))
    before = len(peer.line.frames())
    peer.feed(commit("g", "demo", 1, 7))
    assert len(peer.line.frames()) == before
    peer.run()
    assert peer.line.frames()[before:] == [b"\x03\x01"]
    offsets = world.disk.broker.groups.offsets
    assert offsets.committed("g")[Partition("demo", 1)].offset == 7
    assert peer.ask(committed("g", "demo", 1)) == b"\x04\x01" + struct.pack(">Q", 7)
    assert peer.ask(committed("g", "demo", 0)) == b"\x04\x00"


@pytest.mark.parametrize(
    ("group", "topic", "partition", "offset"),
    [
        ("g", "demo", 0, 1 << 63),
        ("g", "demo", 0, (1 << 64) - 1),
        ("g", "demo", (1 << 32) - 1, 0),
        ("g", "x" * 65_535, 0, 0),
        ("g" * 65_535, "demo", 0, 0),
    ],
)
@pytest.mark.local_engine("a cluster keeps offsets of its topics only")
def test_commits_that_no_other_door_could_show_are_kept(
    world: RustLogWorld,
    peer: RustLogConnection,
    group: str,
    topic: str,
    partition: int,
    offset: int,
) -> None:
    world.disk.broker.groups.offsets.publish()
    assert peer.ask(commit(group, topic, partition, offset)) == b"\x03\x01"
    assert peer.ask(committed(group, topic, partition)) == b"\x04\x01" + struct.pack(">Q", offset)
    at = Partition(topic, partition)
    kept = world.disk.broker.groups.offsets.committed(group)[at]
    assert kept.offset == min(offset, (1 << 63) - 1)


@pytest.mark.parametrize("metadata", ["", "rustlog.offset=", "rustlog.offset=²"])
def test_what_others_write_beside_a_commit_is_not_taken_for_ours(
    world: RustLogWorld, peer: RustLogConnection, metadata: str
) -> None:
    most = (1 << 63) - 1
    offsets = world.disk.broker.groups.offsets
    offsets.commit("g", {DEMO: Committed(most, metadata=metadata)})
    assert peer.ask(committed("g", "demo", 0)) == b"\x04\x01" + struct.pack(">Q", most)
    offsets.commit("g", {DEMO: Committed(5, metadata=f"rustlog.offset={1 << 63}")})
    assert peer.ask(committed("g", "demo", 0)) == b"\x04\x01" + struct.pack(">Q", 5)


def test_odd_creations(peer: RustLogConnection) -> None:
    for count in (0, 1001, (1 << 32) - 1):
        assert failure(peer.ask(create("new", count))) == (12, f"Invalid partition count: {count}")
    code, _ = failure(peer.ask(create("__consumer_offsets", 1)))
    assert code == 12
    assert peer.ask(LIST) == b"\x06" + bytes(4)


@pytest.mark.local_engine("Kafka has no such names")
def test_lists_are_sorted_by_bytes(peer: RustLogConnection) -> None:
    for name in ("b", "é", "Z", "a"):
        assert peer.ask(create(name, 1)) == b"\x05\x01"
    names = [b"Z", b"a", b"b", "é".encode()]
    entries = [struct.pack(">H", len(name)) + name + b"\0\0\0\x01" for name in names]
    assert peer.ask(LIST) == b"\x06\0\0\0\x04" + b"".join(entries)


@pytest.mark.local_engine("a cluster does not tell its segments")
def test_segments_are_counted(world: RustLogWorld, peer: RustLogConnection) -> None:
    small = {"segment.bytes": "10000"}
    world.disk.topics.create(TopicSpec(name="demo", partitions=1, settings=small))
    for _ in range(5):
        peer.ask(produce("demo", 0, bytes(6000)))
    assert peer.say(type="DescribeTopic", topic="demo")["partitions"][0]["segment_count"] == 5
    assert peer.ask(describe("demo", 0))[-8:] == struct.pack(">Q", 5)


def metrics(peer: RustLogConnection) -> dict[str, int]:
    payload = peer.ask(METRICS)
    assert struct.unpack_from(">BI", payload) == (9, len(payload) - 5)
    said = peer.say(type="MetricsFetch")
    assert said["type"] == "MetricsFetchResponse"
    lines = payload[5:].decode().splitlines()
    assert [line for line in lines if line.startswith("# TYPE")]
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: int(value) for name, value in pairs}


def test_metrics_count(world: RustLogWorld, peer: RustLogConnection) -> None:
    before = metrics(peer)
    assert before["active_connections"] == 1
    assert before["messages_produced_total"] == 0
    peer.ask(create("demo", 1))
    peer.asks(produce("demo", 0, *[b"x"] * 10) * 2)
    peer.ask(fetch("demo", 0, 5))
    peer.ask(commit('g"1', "demo", 0, 4))
    other = world.connect()
    after = metrics(peer)
    assert after["active_connections"] == 2
    assert after["messages_produced_total"] == 20
    assert after["messages_fetched_total"] == 15
    assert after["bytes_in_total"] > before["bytes_in_total"] + 100
    assert after["bytes_out_total"] > before["bytes_out_total"] + 100
    assert after['consumer_lag{topic="demo",partition="0",group="g\\"1"}'] == 16
    other.session.close()
    other.session.close()
    assert metrics(peer)["active_connections"] == 1


@pytest.mark.parametrize("head", [bytes(4), b"\x00\xa0\x00\x01", b"\xff\xff\xff\xff"])
@pytest.mark.parametrize("as_json", [False, True])
def test_bad_frames_are_answered_in_the_last_dialect(
    peer: RustLogConnection, head: bytes, as_json: bool
) -> None:
    peer.ask(text(type="Ping") if as_json else PING)
    peer.feed(head + PING)
    answer = peer.line.frames()[-1]
    assert len(peer.line.frames()) == 2
    assert peer.line.hung_up
    if as_json:
        assert json.loads(answer)["code"] == 400
    else:
        assert failure(answer)[0] == 1


def test_a_broken_frame_does_not_take_the_answers_before_it(peer: RustLogConnection) -> None:
    peer.ask(create("demo", 1))
    before = len(peer.line.frames())
    peer.feed(produce("demo", 0, b"x") + fetch("demo", 0, 0) + bytes(4))
    peer.run()
    answers = peer.line.frames()[before:]
    assert answers[0] == b"\x01" + struct.pack(">QI", 0, 1)
    assert fetched(answers[1]) == ([b"x"], 1)
    assert failure(answers[2])[0] == 1


def test_frames_are_left_while_the_line_is_full(peer: RustLogConnection) -> None:
    peer.line.full = True
    peer.feed(PING * 3)
    assert peer.left == PING * 3
    peer.line.full = False
    assert peer.asks(b"") == [b"\xff"] * 3


def test_the_configured_frame_is_the_limit(tmp_path: Path) -> None:
    world = RustLogWorld(tmp_path, frame_bytes_max=1024)
    peer = world.connect()
    peer.feed(produce("demo", 0, bytes(2000)))
    said = "Frame error: frame too large: 2019 bytes (max: 1024)"
    assert failure(peer.line.frames()[0]) == (1, said)
    world.close()


def test_the_session_says_how_much_it_wants(peer: RustLogConnection) -> None:
    peer.feed(produce("demo", 0, bytes(2000))[:100])
    assert peer.session.wanted == 4 + 2019
    peer.feed(b"")
    assert peer.session.wanted == 4 + 2019


@pytest.mark.local_engine("counts what is answered in one turn")
def test_a_wide_topic_is_made_in_turns_and_those_behind_it_wait(peer: RustLogConnection) -> None:
    before = len(peer.line.frames())
    peer.feed(create("wide", 300) + produce("wide", 299, b"x") + PING)
    assert peer.line.muted
    assert len(peer.left) > 5
    peer.run()
    assert peer.line.frames()[before:] == [
        b"\x05\x01",
        b"\x01" + struct.pack(">QI", 0, 1),
        b"\xff",
    ]
    assert failure(peer.ask(create("wide", 300)))[0] == 11
    assert len(peer.ask(describe("wide"))) == 15 + 300 * 12


@pytest.mark.local_engine("counts what is answered in one turn")
def test_answers_made_by_hand_leave_others_their_turn(peer: RustLogConnection) -> None:
    peer.ask(create("wide", 300))
    before = len(peer.line.frames())
    peer.feed(describe("wide") * 200)
    assert 30 < len(peer.line.frames()) - before < 100
    peer.run()
    assert len(peer.line.frames()) - before == 200


def test_records_for_nowhere_are_not_made_objects(peer: RustLogConnection) -> None:
    answer = failure(peer.ask(produce("nowhere", 0, *[b""] * 100_000)))
    assert answer == (10, "Topic or partition does not exist: topic=nowhere, partition=0")


def test_the_packets_that_kill_the_original(peer: RustLogConnection) -> None:
    peer.ask(create("demo", 1))
    deadly = bytes.fromhex("0000000f01000464656d6f00000000ffffffff")
    assert failure(peer.ask(deadly)) == (2, "Decode error: decode error: truncated record length")
    assert failure(peer.ask(create("wide", 1 << 31)))[0] == 12
    assert peer.ask(produce("demo", 0, b"alive")) == b"\x01" + struct.pack(">QI", 0, 1)

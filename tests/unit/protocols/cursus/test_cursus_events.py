"""Event sourcing: versions without a gap for each key, snapshots, and both after a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.cursus_world import Client, CursusBroker, Message, batch, messages_of

from pentalog.model import batch as batches_of
from pentalog.model.types import Ack, Partition, Record


@pytest.fixture(autouse=True)
def topic(client: Client) -> None:
    client.text("CREATE topic=es partitions=2 event_sourcing=true")
    client.text("CREATE topic=plain partitions=1")


def append(client: Client, key: str, version: int, payload: str = "x", more: str = "") -> str:
    return client.text(
        f"APPEND_STREAM topic=es key={key} version={version} {more} message={payload}"
    )


def read(client: Client, key: str, more: str = "") -> tuple[dict[str, Any], list[Message]]:
    envelope, body = client.ask(b"\0\0" + f"READ_STREAM topic=es key={key} {more}".encode())
    return json.loads(envelope), messages_of(body)


def test_the_captured_conversation(client: Client) -> None:
    assert client.text(
        "APPEND_STREAM topic=es key=acc-1 version=1 event_type=Opened schema_version=1 "
        'metadata={"a":1} message={"amount": 10}'
    ) == "OK version=1 offset=0 partition=0"  # fmt: skip
    assert append(client, "acc-1", 2, "y=2 message=z", "event_type=Dep") == (
        "OK version=2 offset=1 partition=0"
    )
    assert client.ask("READ_STREAM topic=es key=acc-1") == [
        b'{"status":"OK","topic":"es","key":"acc-1","partition":0,"count":2}',
        bytes.fromhex(
            "ba7c0002657300000000013100" + "00" * 16 + "00000002"
            "0000000000000000000000000000000000000005" "6163632d31" "0000000000000000" "0000000e"
            "7b22616d6f756e74223a2031307d" "00064f70656e6564" "00000001" "0000000000000001"
            "00077b2261223a317d"
            "0000000000000001000000000000000000000005" "6163632d31" "0000000000000000" "0000000d"
            "793d32206d6573736167653d7a" "0003446570" "00000001" "0000000000000002" "0000"
        ),
    ]  # fmt: skip


def test_versions_have_no_gap(client: Client) -> None:
    assert append(client, "a", 3) == "ERROR: version_conflict current=0 expected=3"
    assert append(client, "a", 0) == "ERROR: version_conflict current=0 expected=0"
    assert append(client, "a", 1).startswith("OK version=1")
    assert append(client, "a", 1) == "ERROR: version_conflict current=1 expected=1"
    assert append(client, "b", 1).startswith("OK version=1")
    assert client.text("STREAM_VERSION topic=es key=a") == "OK version=1"
    assert client.text("STREAM_VERSION topic=es key=nobody") == "OK version=0"


@pytest.mark.parametrize("grow", ["cursus", "kafka"])
def test_a_stream_stays_where_it_is_when_its_topic_grows(tmp_path: Path, grow: str) -> None:
    first = CursusBroker(tmp_path / "grown")
    client = first.connect()
    client.text("CREATE topic=es partitions=2 event_sourcing=true")
    keys = [f"k{number}" for number in range(20)]
    before = [append(client, key, 1).split("partition=")[1] for key in keys]
    assert set(before) == {"0", "1"}
    if grow == "cursus":
        assert client.text("CREATE topic=es partitions=5").startswith("OK topic=es partitions=5")
    else:
        first.topics.grow("es", 5)
    first.close()
    second = CursusBroker(tmp_path / "grown")
    client = second.connect()
    for key, partition in zip(keys, before, strict=True):
        assert append(client, key, 1) == "ERROR: version_conflict current=1 expected=1"
        assert append(client, key, 2).endswith(f"partition={partition}")
        assert [message.version for message in read(client, key)[1]] == [1, 2]
    second.close()


def test_a_read_under_way_brings_no_event_into_the_next_topic(
    client: Client, broker: CursusBroker
) -> None:
    """The partition of a deleted topic stays on the disk until its deletion is durable."""
    assert append(client, "a", 1).startswith("OK version=1")
    reader = broker.connect()
    command = b"READ_STREAM topic=es key=a"
    broker.runtime.held_lanes |= {"state"}
    reader.feed(len(command).to_bytes(4, "big") + command)
    broker.connect().ask("DELETE topic=es")
    broker.runtime.held_lanes.clear()
    broker.step()
    client.text("CREATE topic=es partitions=2 event_sourcing=true")
    assert "OK" in client.text("PUBLISH topic=es producerId=p key=a message=x")
    assert client.text("STREAM_VERSION topic=es key=a") == "OK version=0"
    assert append(client, "a", 1).startswith("OK version=1")


def test_of_two_at_once_one_wins(broker: CursusBroker) -> None:
    clients = [broker.connect() for _ in range(5)]
    broker.runtime.held_lanes |= {"sync"}
    command = b"APPEND_STREAM topic=es key=a version=1 message=x"
    for client in clients:
        client.feed(len(command).to_bytes(4, "big") + command)
    broker.runtime.held_lanes.clear()
    broker.step()
    answers = [client.frames()[0] for client in clients]
    assert sum(answer.startswith(b"OK version=1") for answer in answers) == 1
    assert answers.count(b"ERROR: version_conflict current=1 expected=1") == 4


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("APPEND_STREAM key=a version=1 message=x", "missing_topic command=APPEND_STREAM"),
        ("APPEND_STREAM topic=es version=1 message=x", "missing_key command=APPEND_STREAM"),
        ("APPEND_STREAM topic=es key=a message=x", "missing_version command=APPEND_STREAM"),
        (
            "APPEND_STREAM topic=es key=a version=x message=x",
            "invalid_version command=APPEND_STREAM",
        ),
        (
            f"APPEND_STREAM topic=es key=a version={10**18} message=x",
            "invalid_version command=APPEND_STREAM",
        ),
        ("APPEND_STREAM topic=es key=a version=1", "missing_message command=APPEND_STREAM"),
        (
            "APPEND_STREAM topic=es key=a version=1 schema_version=x message=x",
            "invalid_schema_version command=APPEND_STREAM",
        ),
        ("APPEND_STREAM topic=nope key=a version=1 message=x", "topic_not_found topic=nope"),
        (
            "APPEND_STREAM topic=plain key=a version=1 message=x",
            "event_sourcing_not_enabled topic=plain",
        ),
        ("STREAM_VERSION topic=plain key=a", "event_sourcing_not_enabled topic=plain"),
        (
            "SAVE_SNAPSHOT topic=es key=a version=9 message=x",
            "snapshot_version_exceeds_stream version=9 current=0",
        ),
        ("SAVE_SNAPSHOT topic=es key=a message=x", "missing_version command=SAVE_SNAPSHOT"),
    ],
)
def test_refusals(client: Client, command: str, answer: str) -> None:
    assert client.text(command) == f"ERROR: {answer}"


def test_refused_reads_are_one_frame(client: Client) -> None:
    assert client.ask("READ_STREAM topic=nope key=a") == [
        b'{"error":"topic_not_found topic=nope","status":"ERROR"}'
    ]
    (answer,) = client.ask("READ_STREAM topic=es key=a from_version=0")
    assert json.loads(answer)["error"].startswith("invalid_from_version")


def test_reading_from_a_version_and_after_a_snapshot(client: Client) -> None:
    for version in range(1, 6):
        append(client, "acc-1", version, f"event {version}")
        append(client, "acc-3", version, "between")
    envelope, messages = read(client, "acc-1")
    assert envelope["count"] == 5
    assert [message.version for message in messages] == [1, 2, 3, 4, 5]
    assert [m.version for m in read(client, "acc-1", "from_version=4")[1]] == [4, 5]
    assert read(client, "nobody") == (
        {"status": "OK", "topic": "es", "key": "nobody", "partition": 0, "count": 0}, [],
    )  # fmt: skip
    assert client.text('SAVE_SNAPSHOT topic=es key=acc-1 version=3 message={"bal": 10}') == (
        "OK version=3 partition=0"
    )
    envelope, messages = read(client, "acc-1")
    assert envelope["snapshot"] == {"version": 3, "payload": '{"bal": 10}'}
    assert [message.version for message in messages] == [4, 5]
    envelope, messages = read(client, "acc-1", "from_version=4")
    assert "snapshot" not in envelope
    assert [message.version for message in messages] == [4, 5]
    assert client.text("READ_SNAPSHOT topic=es key=acc-1") == (
        'OK snapshot={"version":3,"payload":"{\\"bal\\": 10}"}'
    )
    assert client.text("READ_SNAPSHOT topic=es key=nobody") == "OK snapshot=null"


def test_versions_and_snapshots_outlive_a_restart(tmp_path: Path) -> None:
    first = CursusBroker(tmp_path / "again")
    client = first.connect()
    client.text("CREATE topic=es partitions=2 event_sourcing=true")
    for version in (1, 2, 3):
        assert append(client, "a", version).startswith("OK")
    client.text("SAVE_SNAPSHOT topic=es key=a version=2 message=snap")
    first.close()
    second = CursusBroker(tmp_path / "again")
    client = second.connect()
    assert append(client, "a", 3) == "ERROR: version_conflict current=3 expected=3"
    assert append(client, "a", 4).startswith("OK version=4")
    assert client.text("READ_SNAPSHOT topic=es key=a").endswith('{"version":2,"payload":"snap"}')
    second.close()


def write_event(broker: CursusBroker, key: bytes, version: int, *, door: str) -> None:
    """Write an event without the broker's index, in a batch that names `door` as its builder."""
    headers = (("cursus.aggregate_version", b"%d" % version),)
    built = batches_of.build([Record(b"theirs", key, headers)], timestamp_ms=1)
    payload, header = batches_of.payload_of(built, 0, bytes_max=1000)
    marked = header._replace(attributes=batches_of.DOORS.index(door) << batches_of.DOOR_SHIFT)
    data = batches_of.rebuild(marked, payload, count=1, codec=0)
    log = broker.log
    log.settle(log.append(Partition("es", 0), memoryview(data)), Ack.DURABLE)
    broker.step()


def test_what_was_not_saved_is_found_in_the_log(broker: CursusBroker, client: Client) -> None:
    """As after a crash between the record and its row."""
    append(client, "acc-1", 1)
    write_event(broker, b"acc-1", 2, door="cursus")
    assert append(client, "acc-1", 2) == "ERROR: version_conflict current=2 expected=2"
    assert append(client, "acc-1", 3).startswith("OK version=3")
    assert [m.payload for m in read(client, "acc-1")[1]] == [b"x", b"theirs", b"x"]


@pytest.mark.parametrize("door", ["kafka", "fluvio", "rustlog", "blipmq"])
def test_headers_written_through_other_doors_are_no_events(tmp_path: Path, door: str) -> None:
    world = CursusBroker(tmp_path / "others")
    client = world.connect()
    client.text("CREATE topic=es partitions=2 event_sourcing=true")
    append(client, "acc-1", 1)
    write_event(world, b"acc-1", 9, door=door)
    write_event(world, b"new", 1, door=door)
    assert client.text("STREAM_VERSION topic=es key=acc-1") == "OK version=1"
    assert client.text("STREAM_VERSION topic=es key=new") == "OK version=0"
    refused = client.text("SAVE_SNAPSHOT topic=es key=acc-1 version=9 message=s")
    assert refused == "ERROR: snapshot_version_exceeds_stream version=9 current=1"
    assert append(client, "acc-1", 2).startswith("OK version=2")
    assert [m.payload for m in read(client, "acc-1")[1]] == [b"x", b"x"]
    world.close()


def test_the_rows_may_be_lost(tmp_path: Path) -> None:
    first = CursusBroker(tmp_path / "lost")
    client = first.connect()
    client.text("CREATE topic=es partitions=2 event_sourcing=true")
    for version in range(1, 30):
        append(client, "a", version)
    first.state.write("DELETE FROM aggregates WHERE version > 0")
    first.state.write("UPDATE aggregate_marks SET next_offset = ?", 3)
    first.close()
    second = CursusBroker(tmp_path / "lost")
    client = second.connect()
    assert client.text("STREAM_VERSION topic=es key=a") == "OK version=29"
    second.close()


def test_a_topic_made_anew_starts_at_version_1(client: Client) -> None:
    append(client, "a", 1)
    client.text("SAVE_SNAPSHOT topic=es key=a version=1 message=old")
    client.text("DELETE topic=es")
    client.text("CREATE topic=es partitions=2 event_sourcing=true")
    assert client.text("STREAM_VERSION topic=es key=a") == "OK version=0"
    assert client.text("READ_SNAPSHOT topic=es key=a") == "OK snapshot=null"
    assert append(client, "a", 1).startswith("OK version=1")


def test_events_are_records_for_everybody(client: Client) -> None:
    append(client, "acc-1", 1, "x", "event_type=Opened producerId=p")
    client.publish(batch([Message(b"plain", key=b"acc-1")], topic="es", acks="-1"))
    first, second = client.read("CONSUME topic=es partition=0 offset=0 member=m")
    assert (first.event, first.version, first.schema) == (b"Opened", 1, 1)
    assert (second.payload, second.version) == (b"plain", 0)
    assert read(client, "acc-1")[0]["count"] == 1


def test_what_one_frame_cannot_hold_is_refused(client: Client) -> None:
    for version in range(1, 20):
        append(client, "acc-1", version, "x" * (1 << 20))
    (answer,) = client.ask("READ_STREAM topic=es key=acc-1")
    assert "stream_too_large" in json.loads(answer)["error"]
    assert read(client, "acc-1", "from_version=10")[0]["count"] == 10


def test_large_snapshots_are_refused(client: Client) -> None:
    append(client, "a", 1)
    text = "x" * ((1 << 20) + 1)
    answer = client.text(f"SAVE_SNAPSHOT topic=es key=a version=1 message={text}")
    assert answer.startswith("ERROR: invalid_payload reason=")
    (answer_bytes,) = client.ask(b"SAVE_SNAPSHOT topic=es key=a version=1 message=\xff\xfe")
    assert answer_bytes.startswith(b"ERROR: invalid_payload")

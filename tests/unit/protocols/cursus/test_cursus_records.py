"""Records in and out: acknowledgements, idempotence, what comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cursus_world import (
    Client,
    CursusBroker,
    Message,
    batch,
    frame,
    messages_of,
    numbered,
)

from pentalog.model import batch as batches_of
from pentalog.model.types import Ack, Horizon, Partition, Record

READ = "CONSUME topic=orders partition=0"
CONSUME = "CONSUME topic=orders partition=0 offset={} member=m"


@pytest.fixture(autouse=True)
def topic(client: Client) -> None:
    client.text("CREATE topic=orders partitions=2")


@pytest.mark.parametrize("acks", ["", "0", "1", "-1", "all", "ALL"])
@pytest.mark.parametrize("document", [False, True])
def test_every_field_comes_back(client: Client, acks: str, document: bool) -> None:
    sent = [
        Message(
            b"\xff\x00 any bytes", seq=(1 << 64) - 1, producer=b"p\xff", key=b"k", epoch=-5,
            event=b"Opened", schema=(1 << 32) - 1, version=1 << 63, metadata=b"{}",
        ),
        Message(b""),
    ]  # fmt: skip
    answer = client.publish(batch(sent, acks=acks, document=document))
    asked = acks != "0" or client.broker.broker.knowledge.current
    # A cluster has not said where they are yet when nobody waits for it.
    assert (answer["status"], answer["last_offset"]) == ("OK", 1 if asked else 0)
    got = client.read("CONSUME orders 0 0" if document else CONSUME.format(0))
    for offset, message in enumerate(sent):
        message.offset = offset
    assert got == sent


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (batch([Message()], acks="7"), "invalid_acks value=7"),
        (batch([Message()], topic="nope"), "topic_not_found topic=nope"),
        (batch([Message()], partition=9), "partition_not_found partition=9"),
        (batch([]), "broker_error reason='empty batch messages'"),
        (batch([Message()]) + b"x", "batch_decode_failed reason='bytes are left"),
        (batch([Message()])[:-1], "batch_decode_failed reason='the batch ends inside a message'"),
        (batch([Message()], partition=70_000), "batch_decode_failed reason='the partition"),
        (b"\xba\x7c", "batch_decode_failed reason='the batch ends inside its header'"),
    ],
)
def test_refused_batches_are_answered_with_json(client: Client, body: bytes, error: str) -> None:
    answer = client.publish(body)
    assert answer["status"] == "ERROR"
    assert answer["error"].startswith(error)
    assert not client.line.hung_up
    assert client.publish(batch([Message()]))["last_offset"] == 0, "nothing was stored"


def test_the_document_has_eight_fields(client: Client) -> None:
    (answer,) = client.ask(batch([Message(seq=1, producer=b"p1", epoch=5)], document=True))
    assert answer == (
        b'{"status":"OK","last_offset":0,"producer_epoch":5,"producer_id":"p1","seq_start":1,'
        b'"seq_end":1,"leader":"","error":""}'
    )
    refused = client.publish(batch([Message()], partition=5, document=True))
    assert list(refused) == [
        "status", "last_offset", "producer_epoch", "producer_id", "seq_start", "seq_end",
        "leader", "error",
    ]  # fmt: skip


def test_acks_0_is_answered_however_many_come_at_once(client: Client) -> None:
    client.feed(frame(batch([Message()], acks="0")) * 2_000)
    assert len(client.frames()) == 2_000


def test_acks_0_is_not_answered_where_nobody_reads(client: Client) -> None:
    """Neither a stored nor a refused one: the peer would be stopped by answers it never reads."""
    good, bad = batch([Message()], acks="0"), batch([Message()], topic="nope", acks="0")
    publish = b"PUBLISH topic=orders partition=0 acks=0 producerId=p message=x"
    client.feed(frame(good) * 1_000)
    client.broker.step()
    waiting = client.line.queued_bytes
    for body in (good, bad, publish) * 100:
        client.feed(frame(body))
        client.broker.step()
    assert client.line.queued_bytes == waiting
    answers = client.ask(batch([Message()], acks="1"))
    assert len(answers) == 1_001
    assert json.loads(answers[-1])["last_offset"] == 1_200
    assert len(client.ask(bad)) == 1, "it reads again"


def test_answers_nobody_need_read_are_bounded_even_at_once(client: Client) -> None:
    body = batch([Message(producer=b"p" * 10_000)], acks="0")
    client.feed(frame(body) * 1_000)
    assert 1 << 20 < client.line.queued_bytes < (1 << 20) + 20_000
    client.frames()
    assert ":leo=1000:" in client.text("LIST_OFFSETS topic=orders"), "all are stored"


def test_idempotent_producers(client: Client) -> None:
    """The table of what was captured from the original, without its losses."""
    assert client.publish(numbered(1, 2, 3))["last_offset"] == 2
    assert client.publish(numbered(1, 2, 3))["last_offset"] == 2
    assert client.publish(numbered(3, 4))["last_offset"] == 3
    gap = "idempotency gap for producer p1: expected 5, got 6"
    assert client.publish(numbered(6))["error"] == gap
    assert "expected 6, got 7" in client.publish(numbered(5, 7))["error"]
    stale = client.publish(numbered(1, epoch=0))["error"]
    assert stale == "stale_producer_epoch producer=p1 current=1 got=0"
    assert "new producer epoch" in client.publish(numbered(2, epoch=2))["error"]
    assert client.publish(numbered(1, epoch=2, acks="-1"))["last_offset"] == 4
    assert "stale_producer_epoch" in client.publish(numbered(5, epoch=1))["error"]
    first = client.publish(numbered(5, producer=b"other"))["error"]
    assert first == (
        "idempotency error: first message for producer other must have seqNum 1, got 5"
    )
    assert [m.seq for m in client.read(CONSUME.format(0))] == [1, 2, 3, 4, 1]


def test_idempotence_outlives_a_restart(tmp_path: Path) -> None:
    first = CursusBroker(tmp_path / "again")
    client = first.connect()
    client.text("CREATE topic=orders partitions=1")
    assert client.publish(numbered(1, 2, 3, epoch=7))["last_offset"] == 2
    first.close()
    second = CursusBroker(tmp_path / "again")
    client = second.connect()
    assert client.publish(numbered(1, 2, 3, epoch=7))["last_offset"] == 2
    assert "stale_producer_epoch" in client.publish(numbered(1, epoch=6))["error"]
    assert "expected 4, got 5" in client.publish(numbered(5, epoch=7))["error"]
    assert client.publish(numbered(4, epoch=7))["last_offset"] == 3
    second.close()


def test_a_topic_made_for_it_checks_every_batch(client: Client) -> None:
    client.text("CREATE topic=strict partitions=1 idempotent=true")
    body = batch([Message(seq=2, producer=b"p", epoch=1)], topic="strict")
    assert "must have seqNum 1" in client.publish(body)["error"]
    unnumbered = batch([Message(producer=b"p")], topic="strict")
    assert client.publish(unnumbered)["status"] == "OK"


def test_mixed_producers_are_not_idempotent(client: Client) -> None:
    messages = [Message(seq=1, producer=b"a"), Message(seq=2, producer=b"b")]
    assert "several producers" in client.publish(batch(messages, idempotent=True))["error"]
    assert client.publish(batch(messages))["status"] == "OK"


def test_sequence_numbers_beyond_31_bits(client: Client) -> None:
    start = (1 << 31) - 1
    broker = client.broker
    named = broker.broker.sourcing.producers
    who = named.who(b"p1", 1)
    named.enter(b"p1", 1)
    built = batches_of.build(
        [Record(b"x")], timestamp_ms=1, producer_id=who.producer_id, producer_epoch=who.epoch,
        base_sequence=start - 1,
    )  # fmt: skip
    broker.log.append(Partition("orders", 0), memoryview(built))
    broker.step()
    for number in range(start + 1, start + 5):
        assert client.publish(numbered(number))["status"] == "OK", number
    assert client.publish(numbered(start + 3))["last_offset"] == 3
    assert "expected" in client.publish(numbered(start + 9))["error"]


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8), data=st.data())
def test_any_retries_store_each_message_once(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    broker = CursusBroker(tmp_path_factory.mktemp("retries"))
    client = broker.connect()
    client.text("CREATE topic=orders partitions=1")
    sent = 0
    for size in sizes:
        back = data.draw(st.integers(0, sent), label="resent")
        seqs = range(sent - back + 1, sent + size + 1)
        answer = client.publish(numbered(*seqs))
        assert answer["last_offset"] == sent + size - 1
        sent += size
    got = client.read(CONSUME.format(0))
    assert [message.seq for message in got] == list(range(1, sent + 1))
    assert [message.offset for message in got] == list(range(sent))
    broker.close()


def test_publishing_as_text(client: Client) -> None:
    command = "PUBLISH topic=orders partition=1 producerId=p key=k seqNum=3 epoch=9 message="
    answer = json.loads(client.text(command + "  two words message=again "))
    assert answer == {
        "status": "OK", "last_offset": 0, "producer_epoch": 9, "producer_id": "p",
        "seq_start": 3, "seq_end": 3,
    }  # fmt: skip
    (message,) = client.read("CONSUME orders 1 0")
    assert (message.payload, message.key) == (b"two words message=again", b"k")
    assert client.text("PUBLISH topic=orders producerId=p acks=0 message=x") == "OK"


@pytest.mark.parametrize(
    ("rest", "answer"),
    [
        ("producerId=p message=x", "missing_topic command=PUBLISH"),
        ("topic=orders producerId=p", "missing_message command=PUBLISH"),
        ("topic=orders producerId=p message= ", "missing_message command=PUBLISH"),
        ("topic=orders message=x", "missing_producer_id command=PUBLISH"),
        ("topic=orders producerId=p acks=2 message=x", "invalid_acks value=2"),
        ("topic=orders producerId=p partition=x message=x", "invalid_partition reason"),
        ("topic=orders producerId=p seqNum=-1 message=x", "invalid_seq_num reason"),
        ("topic=orders producerId=p epoch=x message=x", "invalid_epoch reason"),
        ("topic=orders producerId=p isIdempotent=q message=x", "invalid_is_idempotent value=q"),
        ("topic=nope producerId=p message=x", "topic_not_found topic=nope"),
        ("topic=orders producerId=p partition=9 message=x", "partition_not_found partition=9"),
        ("topic=orders txn=t producerId=p message=x", "transaction_metadata_forbidden"),
        (
            "topic=orders producerId=p partition=0 isIdempotent=true seqNum=4 message=x",
            'broker_error reason="idempotency error: first message',
        ),
    ],
)
def test_refused_publications(client: Client, rest: str, answer: str) -> None:
    assert client.text(f"PUBLISH {rest}").startswith(f"ERROR: {answer}")


def test_keys_choose_the_partition(client: Client) -> None:
    for key, partition in (("acc-1", 0), ("acc-2", 1), ("k1", 1)):
        client.text(f"PUBLISH topic=orders producerId=p key={key} acks=-1 message={key}")
        payloads = [m.payload for m in client.read(f"CONSUME orders {partition} 0")]
        assert payloads[-1] == key.encode()
    for _ in range(4):
        client.text("PUBLISH topic=orders producerId=p message=turns")
    marks = [client.broker.log.marks(Partition("orders", index)).end for index in range(2)]
    assert marks == [3, 4]


def test_records_too_large_to_give_back_are_refused(client: Client) -> None:
    answer = client.publish(batch([Message(b"x" * (16 << 20))]))
    assert answer["error"].startswith("invalid_payload")
    client.broker.topics.configure("orders", {"max.message.bytes": "1000"})
    client.broker.step()
    answer = client.publish(batch([Message(b"x" * 2000)]))
    assert answer["error"].startswith("invalid_payload reason='batch of")
    small = [Message(b"x" * 300)] * 20
    assert client.publish(batch(small))["last_offset"] == 19
    many = numbered(*range(1, 21), payload=b"x" * 300)
    for _ in range(2):
        assert client.publish(many)["last_offset"] == 39
    assert len(client.read(CONSUME.format(0))) == 40


def test_batches_carry_the_number_of_this_door(client: Client) -> None:
    client.publish(batch([Message()], acks="-1"))
    opened = client.broker.log.open(Partition("orders", 0), 0, bytes_max=1000, horizon=Horizon.END)
    client.broker.step()
    assert bytes(opened.value.batches)[21:23] == b"\x02\x00"


def test_kafka_headers_are_shown_as_metadata(client: Client) -> None:
    headers = (("trace", b"abc"), ("raw", b"\xff"))
    built = batches_of.build([Record(b"v", b"k", headers)], timestamp_ms=1)
    log = client.broker.log
    log.settle(log.append(Partition("orders", 0), memoryview(built)), Ack.DURABLE)
    (message,) = client.read(CONSUME.format(0))
    assert message.metadata == b'{"headers":[["trace","abc"],["raw",{"base64":"/w=="}]]}'
    assert (message.key, message.payload, message.seq) == (b"k", b"v", 0)


def test_a_record_no_message_can_hold_is_stepped_over_with_a_notice(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    records = [Record(b"a"), *(Record(b"b", b"k" * 70_000) for _ in range(40)), Record(b"c")]
    built = batches_of.build(records, timestamp_ms=1)
    log = client.broker.log
    log.settle(log.append(Partition("orders", 0), memoryview(built)), Ack.DURABLE)
    assert [m.payload for m in client.read(CONSUME.format(0))] == [b"a"]
    (found,) = client.read(CONSUME.format(1))
    assert (found.payload, found.offset) == (b"c", 41)
    (line,) = [record for record in caplog.records if "too long" in record.getMessage()]
    assert "orders-0" in line.getMessage()
    assert "offset 1:" in line.getMessage()


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (f"{READ} offset=0", "invalid_consume_syntax"),
        ("CONSUME topic=orders offset=0 member=m", "invalid_consume_syntax"),
        (
            "CONSUME topic=nope partition=0 offset=0 member=m",
            "command_failed reason=\"topic 'nope' does not exist\"",
        ),
        (
            "CONSUME topic=orders partition=9 offset=0 member=m",
            "command_failed reason=\"partition 9 out of range for topic 'orders' (0-1)\"",
        ),
        (
            "CONSUME topic=orders partition=x offset=0 member=m",
            'command_failed reason="invalid partition value: x"',
        ),
        (f"{READ} offset=x member=m", 'command_failed reason="invalid offset value: x"'),
        (f"{READ} offset=0 member=m isolation=zzz", "invalid_isolation isolation=zzz"),
        (
            "CONSUME topic=zz* partition=0 offset=0 member=m",
            "command_failed reason=\"no topics match pattern 'zz*'\"",
        ),
        (f"{READ} member=m autoOffsetReset=x", "invalid_auto_offset_reset value=x"),
        (
            "CONSUME orders 0",
            'invalid_consume_syntax expected="CONSUME <topic> <partition> <offset>"',
        ),
        ("CONSUME orders x 0", "invalid_partition command=CONSUME"),
        ("CONSUME orders 0 x", "invalid_offset command=CONSUME"),
        ("STREAM topic=orders partition=0", "invalid_stream_syntax"),
    ],
)
def test_refused_reads(client: Client, command: str, answer: str) -> None:
    assert client.text(command) == f"ERROR: {answer}"


def test_patterns_of_topics(client: Client) -> None:
    """As the original: one topic that matches, or of several the one the group has joined."""
    for number in (1, 2):
        client.text(f"CREATE topic=log-{number} partitions=1")
        client.publish(batch([Message(b"%d" % number)], topic=f"log-{number}", acks="-1"))
    read = "CONSUME topic={} partition=0 offset=0 member=m group=g"
    assert [m.payload for m in client.read(read.format("*-1"))] == [b"1"]
    several = (
        "ERROR: command_failed reason=\"pattern 'log-?' matches 2 topics; join one or name it\""
    )
    assert client.text(read.format("log-?")) == several
    client.text("JOIN_GROUP topic=log-2 group=g member=m")
    (answer,) = client.ask(read.format("log-?"))
    assert [m.payload for m in messages_of(answer)] == [b"2"]
    assert answer[4:9] == b"log-?", "the pattern comes back as it was asked for"
    client.text("JOIN_GROUP topic=log-1 group=g member=m")
    assert client.text(read.format("log-?")) == several


def test_where_reading_starts(client: Client) -> None:
    client.publish(batch([Message(b"%d" % number) for number in range(8)], acks="-1"))
    client.text("COMMIT orders g 0 2")

    def first(rest: str) -> int:
        (answer,) = client.ask(f"CONSUME topic=orders partition=0 member=m {rest}")
        messages = messages_of(answer)
        return messages[0].offset if messages else -1

    assert first("offset=5 group=g") == 5, "an explicit offset wins"
    assert first("offset=1 group=g") == 1
    assert first("group=g") == 2
    assert first("group=new") == 0
    assert first("group=new autoOffsetReset=latest") == -1
    assert first("offset=99") == -1
    assert len(client.read(CONSUME.format(0) + " batch=3")) == 3
    assert len(client.read("CONSUME topic=ord?rs partition=0 offset=0 member=m")) == 8


def test_below_the_start(client: Client) -> None:
    client.publish(batch([Message()] * 9, acks="-1"))
    client.broker.topics.trim(Partition("orders", 0), 5)
    client.broker.topics.settle()
    assert client.text(CONSUME.format(1)) == (
        "ERROR: OFFSET_OUT_OF_RANGE requested=1 earliest=5 latest=9"
    )


def test_waiting_for_records(broker: CursusBroker, client: Client) -> None:
    assert client.ask(CONSUME.format(0) + " wait_ms=500") == []
    broker.advance(499)
    assert client.frames() == []
    broker.advance(2)
    (answer,) = client.frames()
    assert messages_of(answer) == []
    assert client.ask(CONSUME.format(0) + " wait_ms=5000") == []
    broker.connect().publish(batch([Message(b"came")], acks="-1"))
    broker.step()
    (answer,) = client.frames()
    assert messages_of(answer)[0].payload == b"came"


def test_a_closed_connection_waits_for_nothing(broker: CursusBroker, client: Client) -> None:
    client.ask(CONSUME.format(0) + " wait_ms=5000")
    assert client.session.waits
    client.session.close()
    assert not client.session.waits
    broker.advance(10_000)
    assert client.frames() == []


def test_what_is_on_its_way_to_the_disk_is_waited_for(broker: CursusBroker, client: Client) -> None:
    broker.runtime.held_lanes |= {"sync"}
    assert client.publish(batch([Message(b"soon")], acks="1"))["last_offset"] == 0
    assert client.ask(CONSUME.format(0)) == []
    broker.runtime.held_lanes.clear()
    broker.step()
    (answer,) = client.frames()
    assert messages_of(answer)[0].payload == b"soon"

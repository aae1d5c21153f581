"""STREAM: pushed records, keep-alives, takeover, restarts, slow readers."""

from __future__ import annotations

import pytest
from tests.support.cursus_world import Client, CursusBroker, Message, batch, frame, messages_of

from pentalog.model import batch as batches_of
from pentalog.model.types import Ack, Partition, Record

STREAM = "STREAM topic=s1 partition=0 group=sg member=m generation=1"


@pytest.fixture(autouse=True)
def topic(client: Client) -> None:
    client.text("CREATE topic=s1 partitions=2")
    client.publish(batch([Message(b"%d" % n) for n in range(7)], topic="s1", acks="-1"))


def write(broker: CursusBroker, *payloads: bytes) -> None:
    messages = [Message(payload) for payload in payloads]
    assert broker.connect().publish(batch(messages, topic="s1", acks="-1"))["status"] == "OK"
    broker.step()


def offsets(frames: list[bytes]) -> list[list[int]]:
    return [[message.offset for message in messages_of(body)] for body in frames if body]


def test_pending_records_then_new_ones(broker: CursusBroker, client: Client) -> None:
    assert offsets(client.ask(STREAM + " batch=4")) == [[0, 1, 2, 3], [4, 5, 6]]
    write(broker, b"new", b"er")
    assert offsets(client.frames()) == [[7, 8]]


def test_keep_alives(broker: CursusBroker, client: Client) -> None:
    client.ask(STREAM)
    broker.advance(4_999)
    assert client.frames() == []
    broker.advance(1)
    assert client.frames() == [b""]
    write(broker, b"x")
    broker.advance(5_000)
    assert [len(body) > 0 for body in client.frames()] == [True, False]


def test_takeover(broker: CursusBroker, client: Client) -> None:
    client.ask(STREAM)
    second = broker.connect()
    taken = second.ask("STREAM topic=s1 partition=0 group=sg member=m2 generation=1 offset=3")
    assert offsets(taken) == [[3, 4, 5, 6]]
    assert client.frames() == [b"STREAM_CONTROL type=CLOSE reason=replaced offset=7"]
    assert client.line.hung_up
    others = broker.connect()
    others.ask("STREAM topic=s1 partition=0 group=other")
    assert not second.line.hung_up
    write(broker, b"x")
    assert offsets(second.frames()) == offsets(others.frames()) == [[7]]


def test_a_second_stream_on_the_connection_restarts_it(client: Client) -> None:
    client.ask(STREAM)
    assert offsets(client.ask(STREAM + " offset=5")) == [[5, 6]]
    assert not client.line.hung_up


def test_readers_of_the_document_do_not_replace_each_other(
    broker: CursusBroker, client: Client
) -> None:
    second = broker.connect()
    for reader in (client, second):
        assert offsets(reader.ask("STREAM s1 0 5")) == [[5, 6]]
    write(broker, b"x")
    (body,) = client.frames()
    assert body[6:9] == b"\x00\x010"
    assert second.frames() == [body]


def test_start_of_a_group_that_has_committed(client: Client) -> None:
    client.text("COMMIT s1 sg 0 4")
    assert offsets(client.ask(STREAM)) == [[4, 5, 6]]


def test_words_on_a_stream_are_ignored_but_batches_are_not_lost_in_silence(
    client: Client,
) -> None:
    client.ask(STREAM)
    assert client.ask("LIST") == []
    (answer,) = client.ask(batch([Message()], topic="s1"))
    assert answer == b"STREAM_CONTROL type=CLOSE reason=error offset=7"
    assert client.line.hung_up


def test_a_slow_reader_holds_nothing_up_and_nothing_piles_up(
    broker: CursusBroker, client: Client
) -> None:
    client.ask(STREAM)
    client.line.full = True
    for number in range(50):
        write(broker, b"%d" % number)
    assert client.frames() == []
    client.line.drain()
    broker.step()
    assert sum(map(len, offsets(client.frames()))) == 50


def test_a_deleted_topic_ends_its_streams(broker: CursusBroker, client: Client) -> None:
    client.ask(STREAM)
    broker.connect().text("DELETE topic=s1")
    broker.step()
    assert client.frames() == [b"STREAM_CONTROL type=CLOSE reason=removed offset=7"]


def test_a_start_that_is_gone(broker: CursusBroker, client: Client) -> None:
    broker.topics.trim(Partition("s1", 0), 5)
    broker.topics.settle()
    assert client.text(STREAM + " offset=1") == (
        "ERROR: OFFSET_OUT_OF_RANGE requested=1 earliest=5 latest=7"
    )
    assert not client.line.hung_up
    assert offsets(client.ask(STREAM + " offset=5")) == [[5, 6]]


def test_records_that_vanish_under_a_reader(broker: CursusBroker, client: Client) -> None:
    client.ask(STREAM)
    client.line.full = True
    write(broker, b"a", b"b", b"c")
    broker.topics.trim(Partition("s1", 0), 9)
    broker.topics.settle()
    broker.step()
    client.line.drain()
    broker.step()
    assert client.frames() == [
        b"STREAM_CONTROL type=CLOSE reason=offset_out_of_range offset=7 requested=7 earliest=9 "
        b"latest=10"
    ]


def test_a_stream_steps_over_records_that_no_message_can_hold(
    broker: CursusBroker, client: Client
) -> None:
    client.ask(STREAM)
    records = [*(Record(b"v", b"k" * 70_000) for _ in range(40)), Record(b"after")]
    built = batches_of.build(records, timestamp_ms=1)
    log = broker.log
    log.settle(log.append(Partition("s1", 0), memoryview(built)), Ack.DURABLE)
    broker.step()
    (body,) = client.frames()
    assert [(m.payload, m.offset) for m in messages_of(body)] == [(b"after", 47)]
    write(broker, b"new")
    assert offsets(client.frames()) == [[48]]


def test_a_stopping_broker_says_so(broker: CursusBroker, client: Client) -> None:
    client.ask(STREAM)
    broker.log.stop_waiting()
    broker.step()
    assert client.frames() == [b"STREAM_CONTROL type=CLOSE reason=stopped offset=7"]


def test_a_closed_connection_leaves_nothing_behind(broker: CursusBroker, client: Client) -> None:
    client.ask(STREAM)
    client.session.close()
    assert not client.session.door.streams
    assert not client.session.waits
    write(broker, b"x")
    broker.advance(20_000)
    assert client.frames() == []


def test_several_streams_of_one_partition_wake_together(broker: CursusBroker) -> None:
    readers = [broker.connect() for _ in range(5)]
    for number, reader in enumerate(readers):
        reader.feed(frame(f"STREAM topic=s1 partition=0 group=g{number} offset=7".encode()))
    broker.step()
    write(broker, b"x")
    for reader in readers:
        (body,) = reader.frames()
        assert offsets([body]) == [[7]]

"""Produce and fetch over the real log: what goes in comes out, whoever asks and however."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from disk_broker import Connection, DiskBroker
from kafka_requests import fetch, produce, request
from kafka_world import answer_of, records

from pentalog import kernels
from pentalog.broker.port import TopicSpec
from pentalog.model import batch
from pentalog.model.types import Partition, Record
from pentalog.protocols.kafka.errors import ErrorCode

NO_TIME = timedelta(0)


@pytest.fixture(params=[0, 100], ids=["page cache", "synced"])
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[DiskBroker]:
    made = DiskBroker(tmp_path, flush_interval_ms=request.param)
    made.topics.create(TopicSpec(name="orders", partitions=3))
    made.runtime.run()
    yield made
    made.close()


def produced(connection: Connection, version: int, data: bytes) -> Any:
    answer = answer_of(0, version, connection.ask(data))
    return answer.responses[0].partition_responses[0]


def fetched(connection: Connection, data: bytes) -> Any:
    return answer_of(1, 11, connection.ask(data)).responses[0].partitions[0]


def values(data: bytes) -> list[tuple[int, bytes | None]]:
    found, position = [], 0
    while position < len(data):
        for offset, record in batch.records_of(data, position, bytes_max=1 << 20):
            found.append((offset, record.value))
        position += kernels.batch_header(data, position).size
    return found


@pytest.mark.parametrize("acks", [1, -1])
def test_what_was_produced_is_fetched(broker: DiskBroker, acks: int) -> None:
    connection = Connection(broker)
    for base in (0, 3, 6):
        one = produced(connection, 9, produce(9, [("orders", 1, records(3))], acks=acks))
        assert (one.error_code, one.base_offset) == (0, base)
    broker.runtime.advance(1000)
    found = fetched(connection, fetch(11, [("orders", 1, 0)]))
    assert (found.error_code, found.high_watermark) == (0, 9)
    assert values(found.records) == [(offset, b"v" * 10) for offset in range(9)]
    middle = fetched(connection, fetch(11, [("orders", 1, 4)]))
    assert [offset for offset, _ in values(middle.records)] == [3, 4, 5, 6, 7, 8]
    assert fetched(connection, fetch(11, [("orders", 1, 10)])).error_code == 1


def test_a_waiting_fetch_is_woken_by_a_produce(broker: DiskBroker) -> None:
    reader, writer = Connection(broker), Connection(broker)
    reader.feed(fetch(11, [("orders", 0, 0)], wait_ms=500))
    reader.run()
    assert reader.line.frames() == []
    assert produced(writer, 9, produce(9, [("orders", 0, records(2))], acks=-1)).error_code == 0
    (answer,) = reader.line.frames()
    (found,) = answer_of(1, 11, answer).responses[0].partitions
    assert len(values(found.records)) == 2


def test_a_waiting_fetch_ends_with_its_time(broker: DiskBroker) -> None:
    reader = Connection(broker)
    reader.feed(fetch(11, [("orders", 0, 0)], wait_ms=500))
    broker.runtime.advance(499)
    assert reader.line.frames() == []
    broker.runtime.advance(2)
    (answer,) = reader.line.frames()
    assert answer_of(1, 11, answer).responses[0].partitions[0].records == b""


def test_a_retried_batch_is_written_once(broker: DiskBroker) -> None:
    connection = Connection(broker)
    identity = answer_of(
        22,
        4,
        connection.ask(request(22, 4, {"transactional_id": None, "transaction_timeout": NO_TIME})),
    )
    who = {"producer_id": identity.producer_id, "producer_epoch": 0}
    sent = [
        produce(9, [("orders", 0, records(2, base_sequence=2 * number, **who))], acks=-1)
        for number in range(3)
    ]
    # All in one run, then the last two again in front of a new one, again in one run.
    connection.feed(b"".join(sent))
    connection.run()
    fresh = produce(9, [("orders", 0, records(2, base_sequence=6, **who))], acks=-1)
    connection.feed(sent[1] + sent[2] + fresh)
    connection.run()
    found = [answer_of(0, 9, answer) for answer in connection.line.frames()[1:]]
    parts = [answer.responses[0].partition_responses[0] for answer in found]
    assert [(int(one.error_code), one.base_offset) for one in parts] == [
        (0, 0), (0, 2), (0, 4), (0, 2), (0, 4), (0, 6),
    ]  # fmt: skip
    gap = produce(9, [("orders", 0, records(2, base_sequence=20, **who))], acks=-1)
    assert produced(connection, 9, gap).error_code == 45
    assert len(values(fetched(connection, fetch(11, [("orders", 0, 0)])).records)) == 8


def test_a_deleted_topic_wakes_its_readers(broker: DiskBroker) -> None:
    reader = Connection(broker)
    reader.feed(fetch(11, [("orders", 0, 0)], wait_ms=60_000))
    broker.topics.delete("orders")
    broker.runtime.advance(60_001)
    (answer,) = reader.line.frames()
    assert answer_of(1, 11, answer).responses[0].partitions[0].error_code == 3


@pytest.mark.parametrize("topics", [["copies"], ["copies", "orders"]], ids=["run", "several"])
def test_more_copies_than_there_are_cannot_be_waited_for(
    broker: DiskBroker, topics: list[str]
) -> None:
    broker.topics.create(TopicSpec(name="copies", settings={"min.insync.replicas": "2"}))
    connection = Connection(broker)
    parts = [(topic, 0, records(1)) for topic in topics]
    assert produced(connection, 9, produce(9, parts, acks=-1)).error_code == 19
    assert produced(connection, 9, produce(9, parts, acks=1)).error_code == 0
    broker.topics.configure("copies", {"min.insync.replicas": "1"})
    one = produced(connection, 9, produce(9, parts, acks=-1))
    assert (one.error_code, one.base_offset) == (0, 1)


@pytest.mark.parametrize("count", [1, 2, 20], ids=["run", "several", "many"])
def test_a_batch_on_a_lane_is_not_written_to_another_topic_of_its_name(
    broker: DiskBroker, count: int
) -> None:
    zipped = {"compression.type": "gzip"}
    spec = TopicSpec(name="zipped", partitions=count, settings=zipped)
    topic_id = broker.topics.create(spec).topic_id
    broker.runtime.run()
    connection = Connection(broker)
    broker.runtime.held_lanes.add("open")
    large = batch.build([Record(bytes(500_000))], timestamp_ms=1_700_000_000_000)
    connection.feed(produce(13, [(topic_id, index, large) for index in range(count)]))
    connection.run()
    assert connection.line.frames() == []
    broker.topics.delete("zipped")
    broker.topics.create(spec)
    broker.runtime.release()
    connection.run()
    (answer,) = connection.line.frames()
    answered = answer_of(0, 13, answer).responses
    codes = [part.error_code for topic in answered for part in topic.partition_responses]
    assert codes == [int(ErrorCode.unknown_topic_id)] * count
    log = broker.broker.log
    assert not any(log.marks(Partition("zipped", index)).end for index in range(count))


@pytest.mark.parametrize("count", [1, 2], ids=["run", "several"])
def test_a_stop_waits_for_a_batch_on_a_lane_that_is_not_answered(
    broker: DiskBroker, count: int
) -> None:
    spec = TopicSpec(name="zipped", partitions=count, settings={"compression.type": "gzip"})
    broker.topics.create(spec)
    broker.runtime.run()
    connection = Connection(broker)
    broker.runtime.held_lanes.add("open")
    large = batch.build([Record(bytes(500_000))], timestamp_ms=1_700_000_000_000)
    connection.feed(produce(9, [("zipped", index, large) for index in range(count)], acks=0))
    connection.run()
    assert connection.line.waiting == 1
    broker.runtime.release()
    connection.run()
    assert connection.line.waiting == 0
    assert connection.line.frames() == []
    assert broker.broker.log.marks(Partition("zipped", count - 1)).end == 1


@pytest.mark.parametrize("count", [1, 3], ids=["one request", "a run"])
def test_a_refused_batch_on_a_lane_that_is_not_answered_ends_its_connection(
    broker: DiskBroker, count: int
) -> None:
    broker.topics.create(TopicSpec(name="zipped", settings={"compression.type": "gzip"}))
    broker.runtime.run()
    connection = Connection(broker)
    broker.runtime.held_lanes.add("open")
    small = batch.build([Record(bytes(500_000))], timestamp_ms=1_700_000_000_000, codec=4)
    connection.feed(produce(9, [("zipped", 0, small)], acks=0) * count)
    connection.run()
    broker.topics.delete("zipped")
    broker.runtime.release()
    connection.run()
    assert connection.line.hung_up
    assert not connection.line.waiting, "a stop would wait for it"
    assert not connection.line.held

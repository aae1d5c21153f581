"""What `acks=1` acknowledged is in the answer to every later request, before any timer is due."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from disk_broker import Connection, DiskBroker
from kafka_requests import fetch, produce, request
from kafka_world import answer_of, records

from pentalog.broker.port import TopicSpec
from pentalog.model.types import Partition

LATEST, EARLIEST, NEWEST_TIMESTAMP = -1, -2, -3
UNCOMMITTED, COMMITTED = 0, 1


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[DiskBroker]:
    made = DiskBroker(tmp_path, flush_interval_ms=100)
    made.topics.create(TopicSpec(name="orders", partitions=3))
    made.runtime.run()
    yield made
    made.close()


@pytest.fixture
def reader(broker: DiskBroker) -> Connection:
    return Connection(broker)


def acknowledged(broker: DiskBroker, index: int = 0, count: int = 3) -> None:
    """Written and answered in one turn: no commit has begun."""
    connection = Connection(broker)
    connection.feed(produce(9, [("orders", index, records(count))], acks=1))
    (answer,) = connection.line.frames()
    assert answer_of(0, 9, answer).responses[0].partition_responses[0].error_code == 0
    marks = broker.broker.log.marks(Partition("orders", index))
    assert marks.durable < marks.end


def fetched(reader: Connection, *parts: tuple[str, int, int], **how: Any) -> dict[int, int]:
    """The high watermark of each partition; of one with an error, the code below 0."""
    answer = answer_of(1, 11, reader.ask(fetch(11, list(parts), **how)))
    found = [one for topic in answer.responses for one in topic.partitions]
    for one in found:
        assert bool(one.records) == (one.error_code == 0)
    return {
        one.partition_index: -one.error_code if one.error_code else one.high_watermark
        for one in found
    }


@pytest.mark.parametrize("isolation", [UNCOMMITTED, COMMITTED])
@pytest.mark.parametrize("bytes_min", [0, 1])
def test_a_fetch_that_does_not_wait(
    broker: DiskBroker, reader: Connection, bytes_min: int, isolation: int
) -> None:
    acknowledged(broker)
    how = {"bytes_min": bytes_min, "isolation": isolation}
    assert fetched(reader, ("orders", 0, 0), **how) == {0: 3}


def test_a_fetch_beside_a_partition_with_an_error(broker: DiskBroker, reader: Connection) -> None:
    acknowledged(broker)
    asked = ("orders", 1, 99), ("orders", 0, 0)
    assert fetched(reader, *asked, wait_ms=60_000) == {1: -1, 0: 3}


def test_a_fetch_of_many_partitions_waits_once(broker: DiskBroker, reader: Connection) -> None:
    for index in range(3):
        acknowledged(broker, index)
    reader.feed(fetch(11, [("orders", index, 0) for index in range(3)], bytes_min=1 << 20))
    assert reader.line.waiting == 1
    reader.run()
    (answer,) = reader.line.frames()
    (topic,) = answer_of(1, 11, answer).responses
    assert [len(one.records) > 0 for one in topic.partitions] == [True] * 3


def test_a_fetch_that_finds_enough_does_not_wait(broker: DiskBroker, reader: Connection) -> None:
    acknowledged(broker)
    broker.runtime.advance(200)
    acknowledged(broker)
    reader.feed(fetch(11, [("orders", 0, 0)], wait_ms=500))
    (answer,) = reader.line.frames()
    (found,) = answer_of(1, 11, answer).responses[0].partitions
    assert found.high_watermark == 3


def test_a_fetch_at_a_durable_end_is_answered_at_once(reader: Connection) -> None:
    reader.feed(fetch(11, [("orders", 0, 0)]))
    assert len(reader.line.frames()) == 1


def list_offsets(when: int, *, isolation: int = UNCOMMITTED, index: int = 0) -> bytes:
    partition = {"partition_index": index, "current_leader_epoch": -1, "timestamp": when}
    fields = {
        "replica_id": -1,
        "isolation_level": isolation,
        "topics": [{"name": "orders", "partitions": [partition]}],
        "timeout": timedelta(seconds=1),
    }
    return request(2, 10, fields)


@pytest.mark.parametrize("isolation", [UNCOMMITTED, COMMITTED])
@pytest.mark.parametrize(
    ("when", "offset"), [(LATEST, 3), (NEWEST_TIMESTAMP, 2), (1001, 1)], ids=str
)
def test_offsets_by_edge_and_time(
    broker: DiskBroker, reader: Connection, when: int, offset: int, isolation: int
) -> None:
    acknowledged(broker)
    answer = answer_of(2, 10, reader.ask(list_offsets(when, isolation=isolation)))
    (one,) = answer.topics[0].partitions
    assert (one.error_code, one.offset) == (0, offset)


def test_the_earliest_offset_is_not_waited_for(broker: DiskBroker, reader: Connection) -> None:
    acknowledged(broker)
    reader.feed(list_offsets(EARLIEST))
    assert len(reader.line.frames()) == 1


def test_a_topic_deleted_meanwhile_is_unknown(broker: DiskBroker, reader: Connection) -> None:
    acknowledged(broker)
    reader.feed(list_offsets(LATEST))
    assert reader.line.frames() == []
    broker.store.delete(Partition("orders", 0))
    (answer,) = reader.line.frames()
    assert answer_of(2, 10, answer).topics[0].partitions[0].error_code == 3


@pytest.mark.parametrize(("before", "start"), [(-1, 3), (2, 2), (3, 3)])
def test_records_are_deleted(
    broker: DiskBroker, reader: Connection, before: int, start: int
) -> None:
    acknowledged(broker)
    partition = {"partition_index": 0, "offset": before}
    fields = {
        "topics": [{"name": "orders", "partitions": [partition]}],
        "timeout": timedelta(seconds=1),
    }
    answer = answer_of(21, 2, reader.ask(request(21, 2, fields)))
    (one,) = answer.topics[0].partitions
    assert (one.error_code, one.low_watermark) == (0, start)
    assert broker.broker.log.marks(Partition("orders", 0)).start == start


def test_the_end_of_the_leader_epoch(broker: DiskBroker, reader: Connection) -> None:
    acknowledged(broker)
    partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    fields = {"replica_id": -1, "topics": [{"topic": "orders", "partitions": [partition]}]}
    answer = answer_of(23, 4, reader.ask(request(23, 4, fields)))
    (one,) = answer.topics[0].partitions
    assert (one.error_code, one.end_offset) == (0, 3)

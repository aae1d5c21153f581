"""Batches that must be opened: what is refused, what it is called, and who waits meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disk_broker import Connection, DiskBroker
from kafka_requests import produce
from kafka_world import answer_of, records

from pentalog import kernels
from pentalog.broker.port import TopicSpec
from pentalog.log.admission import ADMITTED_AT_ONCE_BYTES
from pentalog.model import batch
from pentalog.model.types import Horizon, Partition, Record

LARGE = ADMITTED_AT_ONCE_BYTES + 1


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[DiskBroker]:
    made = DiskBroker(tmp_path, flush_interval_ms=0)
    made.topics.create(TopicSpec(name="orders", partitions=3))
    made.topics.create(
        TopicSpec(name="compacted", partitions=3, settings={"cleanup.policy": "compact"})
    )
    made.runtime.run()
    yield made
    made.close()


def large(codec: int = 4, *, key: bytes | None = b"k", **fields: Any) -> bytearray:
    """A batch that is small as it is sent and too large to be opened on the loop."""
    return batch.build([Record(bytes(LARGE), key)], timestamp_ms=1000, codec=codec, **fields)


def answers(connection: Connection, version: int) -> list[list[tuple[int, int]]]:
    """(error code, base offset) of each partition of each answer."""
    return [
        [
            (part.error_code, part.base_offset)
            for topic in answer_of(0, version, data).responses
            for part in topic.partition_responses
        ]
        for data in connection.line.frames()
    ]


@pytest.mark.parametrize("version", [3, 7, 8, 9, 12])
def test_requests_behind_a_large_batch_wait_for_it(broker: DiskBroker, version: int) -> None:
    connection = Connection(broker)
    identity: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0}
    codec = 4 if version >= 7 else 3
    sent = [large(codec, base_sequence=0, **identity)]
    sent += [records(2, base_sequence=number, **identity) for number in (1, 3)]
    sent += [large(codec, base_sequence=5, **identity), records(1, base_sequence=6, **identity)]
    for data in sent:
        connection.feed(produce(version, [("orders", 0, data)]))
    assert connection.line.held
    assert not connection.line.frames(), "nothing overtakes the first"
    while connection.line.waiting or connection.line.held or connection._left:
        connection.run()
        connection.feed(b"")
    assert answers(connection, version) == [[(0, offset)] for offset in (0, 1, 3, 5, 6)]
    found = broker.broker.log.open(
        Partition("orders", 0), 0, bytes_max=9 << 20, horizon=Horizon.END
    )
    broker.runtime.run()
    assert found.value.next_offset == 7


@pytest.mark.parametrize("version", [7, 9])
def test_partitions_of_a_request_are_answered_together(broker: DiskBroker, version: int) -> None:
    connection = Connection(broker)
    poison = large()
    poison[batch.HEADER_BYTES + 5] ^= 0xFF
    poison[17:21] = kernels.crc32c(memoryview(poison)[21:]).to_bytes(4, "big")
    parts = [("orders", 0, large()), ("orders", 1, poison), ("orders", 2, records(2))]
    connection.feed(produce(version, parts) + produce(version, [("orders", 2, records(1))]))
    assert connection.line.held
    while connection.line.waiting or connection.line.held or connection._left:
        connection.run()
        connection.feed(b"")
    assert answers(connection, version) == [[(0, 0), (87, -1), (0, 0)], [(0, 2)]]


@pytest.mark.parametrize("acks", [0, 1])
def test_a_large_batch_that_is_refused(broker: DiskBroker, acks: int) -> None:
    connection = Connection(broker)
    bomb = batch.build([Record(bytes(9 << 20))], timestamp_ms=1000, codec=4)
    connection.feed(produce(9, [("orders", 0, bomb)], acks=acks))
    connection.run()
    assert connection.line.hung_up is (acks == 0)
    if acks:
        assert answers(connection, 9) == [[(10, -1)]]
    assert not connection.line.held


def test_a_connection_that_goes_while_its_batch_is_opened(broker: DiskBroker) -> None:
    connection = Connection(broker)
    connection.feed(produce(9, [("orders", 0, large())], acks=0))
    connection.session.close()
    connection.run()
    assert broker.broker.log.marks(Partition("orders", 0)).end == 1


@pytest.mark.parametrize("version", [7, 8, 9, 12])
@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("parts", [1, 2])
def test_records_without_a_key_are_named(
    broker: DiskBroker, version: int, codec: int, parts: int
) -> None:
    connection = Connection(broker)
    made = [Record(b"v", None if number % 10 == 3 else b"k") for number in range(100)]
    data = batch.build(made, timestamp_ms=broker.runtime.now_ms(), codec=codec)
    asked = [("compacted", index, data) for index in range(parts)]
    found = answer_of(0, version, connection.ask(produce(version, asked)))
    for topic in found.responses:
        (part,) = topic.partition_responses
        assert (part.error_code, part.base_offset) == (87, -1)
        if version >= 8:
            assert [one.batch_index for one in part.record_errors] == list(range(3, 100, 10))
            assert all("no key" in one.batch_index_error_message for one in part.record_errors)
            assert "10 records without a key" in part.error_message


def test_a_run_is_cut_to_name_the_request_at_fault(broker: DiskBroker) -> None:
    connection = Connection(broker)
    now = broker.runtime.now_ms()
    keyed = batch.build([Record(b"v", b"k")], timestamp_ms=now, codec=4)
    keyless = batch.build([Record(b"v", b"k"), Record(b"v")], timestamp_ms=now, codec=4)
    both = produce(9, [("compacted", 0, keyed)]) + produce(9, [("compacted", 0, keyless)])
    connection.feed(both + produce(9, [("compacted", 0, keyed)]))
    connection.run()
    assert answers(connection, 9) == [[(0, 0)], [(87, -1)], [(0, 1)]]


def test_a_producer_cannot_set_the_brokers_attribute_bits(broker: DiskBroker) -> None:
    connection = Connection(broker)
    for parts in (1, 2):
        data = records(2)
        data[21:23] = (0x0340).to_bytes(2, "big")
        data[17:21] = kernels.crc32c(memoryview(data)[21:]).to_bytes(4, "big")
        asked = [("orders", index, bytes(data)) for index in range(parts)]
        connection.ask(produce(9, asked))
    assert answers(connection, 9) == [[(0, 0)], [(0, 2), (0, 0)]]
    found = broker.broker.log.open(
        Partition("orders", 0), 0, bytes_max=1 << 20, horizon=Horizon.END
    ).value
    assert kernels.attributes_in(found.batches, 0, len(found.batches))[0] == 0
    assert (
        kernels.scan_batches(
            found.batches,
            0,
            len(found.batches),
            file_position=0,
            segment_base=0,
            next_offset=0,
            index_interval=4096,
            bytes_since_entry=0,
            timestamp_max=-1,
            timestamp_max_offset=-1,
            verify=True,
            producers=False,
        ).batches
        == 2
    ), "the sums are right again"

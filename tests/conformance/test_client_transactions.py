"""Transactions by real clients: seen together or never, fenced, timed out, with offsets."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
import subjects
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_clients import CLIENTS
from transaction_writers import WRITERS, ConfluentWriter, Fenced, Writer

import brokers
from pentalog.testing.ports import reserve_port

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka"),
]

WAIT_S = 30


@pytest.fixture(params=WRITERS, ids=lambda kind: str(kind.__name__))
def writer_kind(request: pytest.FixtureRequest) -> type[Writer]:
    kind: type[Writer] = request.param
    return kind


@pytest.fixture
def places(broker: str, topic: str) -> str:
    """A topic of two partitions."""
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(WAIT_S)
    return topic


def read(address: str, topic: str, count: int, *, committed: bool = True) -> set[bytes]:
    """What a consumer gets: `count` records, and proof that there are no more."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"reader of {topic}",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    with closing(consumer):
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in (0, 1)])
        found: list[bytes] = []
        ended: set[int] = set()
        deadline = time.monotonic() + WAIT_S
        while len(ended) < 2 or len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count}"
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                ended.add(message.partition())
            else:
                ended.discard(message.partition())
                found.append(message.value())
    assert len(found) == len(set(found)) == count
    return set(found)


def committed_offset(address: str, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    with closing(consumer):
        (found,) = consumer.committed([TopicPartition(topic, 0)], WAIT_S)
        return int(found.offset)


def test_commits_are_seen_and_aborts_are_not(
    broker: str, places: str, writer_kind: type[Writer]
) -> None:
    with closing(writer_kind(broker, places)) as writer:
        kept: set[bytes] = set()
        for number in range(10):
            writer.begin()
            values = [b"%d %d" % (number, one) for one in range(5)]
            writer.send(places, number % 2, *values[:3])
            writer.send(places, 1 - number % 2, *values[3:])
            if number % 3 == 2:
                writer.abort()
            else:
                writer.commit()
                kept |= set(values)
        assert read(broker, places, len(kept)) == kept
        assert len(read(broker, places, 50, committed=False)) == 50


def test_an_open_transaction_is_not_seen(
    broker: str, places: str, writer_kind: type[Writer]
) -> None:
    with closing(writer_kind(broker, places)) as writer:
        writer.begin()
        writer.send(places, 0, b"open")
        assert read(broker, places, 0) == set()
        writer.commit()
        assert read(broker, places, 1) == {b"open"}


def test_offsets_are_committed_with_the_records(
    broker: str, places: str, writer_kind: type[Writer]
) -> None:
    group = f"group of {places}"
    with closing(writer_kind(broker, places)) as writer:
        for number, commit in ((1, True), (2, False), (3, True)):
            writer.begin()
            writer.send(places, 1, b"%d" % number)
            writer.offsets(group, places, 0, number)
            writer.commit() if commit else writer.abort()
            assert committed_offset(broker, group, places) == (number if commit else 1)
    assert read(broker, places, 2) == {b"1", b"3"}


def test_a_second_producer_of_the_name_fences_the_first(
    broker: str, places: str, writer_kind: type[Writer]
) -> None:
    with closing(writer_kind(broker, places)) as first:
        first.begin()
        first.send(places, 0, b"of the first")
        with closing(ConfluentWriter(broker, places)) as second:
            second.begin()
            second.send(places, 0, b"of the second")
            with pytest.raises(Fenced):
                first.commit()
            second.commit()
    assert read(broker, places, 1) == {b"of the second"}


def test_a_transaction_that_takes_too_long_is_aborted(
    broker: str, places: str, writer_kind: type[Writer]
) -> None:
    with closing(writer_kind(broker, places, timeout_ms=1500)) as slow:
        slow.begin()
        slow.send(places, 0, b"too late")
        with closing(writer_kind(broker, f"{places} other")) as other:
            other.begin()
            other.send(places, 0, b"in time")
            other.commit()
        # The other one's record becomes stable when the open transaction before it is aborted.
        assert read(broker, places, 1) == {b"in time"}
        with pytest.raises(Fenced):
            slow.commit()


def test_all_clients_read_the_same(broker: str, places: str) -> None:
    with closing(ConfluentWriter(broker, places)) as writer:
        for number in range(4):
            writer.begin()
            writer.send(places, 0, b"%d" % number)
            writer.commit()
    # Markers take an offset each and are no records.
    assert CLIENTS[0].latest(broker, places, 0) == 8
    for client in CLIENTS:
        if not client.missing():
            found = client.read(broker, places, partition=0, count=4)
            assert [one.event.value for one in found] == [b"0", b"1", b"2", b"3"]


@pytest.mark.skipif(subjects.STANDS_IN, reason="kills the broker")
def test_an_open_transaction_goes_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    port = reserve_port()
    first = brokers.start_pentalog(tmp_path, port=port)
    admin = AdminClient({"bootstrap.servers": first.address})
    admin.create_topics([NewTopic("t", 2, 1)])["t"].result(WAIT_S)
    writer = ConfluentWriter(first.address, "through a death")
    writer.begin()
    writer.send("t", 0, b"before 0")
    writer.send("t", 1, b"before 1")
    first.process.send_signal(signal.SIGKILL)
    first.process.communicate()
    second = brokers.start_pentalog(tmp_path, port=port)
    with brokers.stopping(second):
        writer.send("t", 0, b"after 0")
        assert read(second.address, "t", 0) == set()
        writer.commit()
        assert read(second.address, "t", 3) == {b"before 0", b"before 1", b"after 0"}
        writer.close()

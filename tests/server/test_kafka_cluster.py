"""The shipped Kafka client against a whole broker: records, groups, transactions, retries."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Collection, Iterator

import pytest

import pentalog
from pentalog.clients.kafka import (
    EARLIEST,
    LATEST,
    ClientOptions,
    Cluster,
    Connection,
    FetchFeed,
    GroupOffset,
    Incompatible,
    KafkaFailed,
    Refused,
    Topic,
    TransactionalProducer,
    Unreachable,
    commit,
    committed,
)
from pentalog.model import batch
from pentalog.model.types import Partition, Record
from pentalog.testing.ports import reserve_port

AT = Partition("orders", 0)
NOW = int(time.time() * 1000)


@pytest.fixture(scope="module")
def broker() -> Iterator[pentalog.Broker]:
    with pentalog.Broker(topic_defaults={"retention.ms": "-1"}) as broker:
        yield broker


@pytest.fixture
def cluster(broker: pentalog.Broker) -> Iterator[Cluster]:
    with Cluster(broker.address("kafka"), ClientOptions(timeout_ms=10_000)) as cluster:
        yield cluster


def build(*values: bytes, codec: int = 0) -> bytes:
    wanted = [Record(value) for value in values]
    return bytes(batch.build(wanted, timestamp_ms=NOW, codec=codec))


def values_of(feed: FetchFeed) -> list[bytes | None]:
    found: list[bytes | None] = []
    while (piece := feed.read()) is not None:
        position = 0
        while position < len(piece.data):
            found += [
                record.value
                for _, record in batch.records_of(piece.data, position, bytes_max=1 << 20)
            ]
            size = struct.unpack_from(">i", piece.data, position + 8)[0] + 12
            position += size
    return found


def test_records_go_in_and_come_out(cluster: Cluster) -> None:
    assert cluster.create_topic("records", 2)
    assert not cluster.create_topic("records", 2)
    at = Partition("records", 1)
    assert cluster.produce(at, build(b"a", b"b")) == 0
    assert cluster.produce(at, build(b"c", codec=4)) == 2
    for number in range(200):
        cluster.produce(at, build(b"%d" % number * 100))
    assert cluster.offsets({at: EARLIEST, Partition("records", 0): LATEST}) == {
        at: 0,
        Partition("records", 0): 0,
    }
    (end,) = cluster.offsets({at: LATEST}).values()
    assert end == 203
    assert cluster.offsets({at: NOW + 1}) == {at: -1}
    everything = values_of(FetchFeed(cluster, at, 0, end, bytes_max=4096))
    assert everything[:3] == [b"a", b"b", b"c"]
    assert everything[3:] == [b"%d" % number * 100 for number in range(200)]
    assert [topic.name for topic in cluster.topics(["records", "absent"])] == ["records"]


def test_a_topic_is_made_once_brokers_know_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A KRaft controller answers CreateTopics before its brokers have read of the topic."""
    ask = cluster._topics
    unknown = iter(range(3))

    def ask_late(names: Collection[str] | None, create: bool) -> list[Topic]:
        if names == ["late"] and next(unknown, None) is not None:
            return []
        return ask(names, create)

    monkeypatch.setattr(cluster, "_topics", ask_late)
    assert cluster.create_topic("late", 1)
    assert list(cluster.topic("late").partitions) == [0]
    assert next(unknown, None) is None


def test_a_batch_larger_than_what_is_asked_for_comes_whole(cluster: Cluster) -> None:
    cluster.create_topic("large", 1)
    at = Partition("large", 0)
    cluster.produce(at, build(b"x" * 200_000))
    assert values_of(FetchFeed(cluster, at, 0, 1, bytes_max=1000)) == [b"x" * 200_000]


def test_offsets_of_a_group_without_members(cluster: Cluster) -> None:
    cluster.create_topic("orders", 1)
    assert committed(cluster, "nobody") == {}
    commit(cluster, "tool", {AT: GroupOffset(5, "note")})
    assert committed(cluster, "tool") == {AT: GroupOffset(5, "note")}
    assert committed(cluster, "tool", [AT, Partition("orders", 9)]) == {AT: GroupOffset(5, "note")}


def test_records_and_offsets_become_visible_together(cluster: Cluster) -> None:
    cluster.create_topic("moved", 1)
    at = Partition("moved", 0)
    producer = TransactionalProducer(cluster, "mover")
    producer.produce(at, bytearray(build(b"no")))
    producer.commit_offsets("movers", {at: GroupOffset(1)})
    producer.abort()
    assert committed(cluster, "movers") == {}
    for round_number in (1, 2):
        producer.produce(at, bytearray(build(b"yes")))
        producer.commit_offsets("movers", {at: GroupOffset(round_number)})
        producer.commit()
    assert committed(cluster, "movers") == {at: GroupOffset(2)}
    (end,) = cluster.offsets({at: LATEST}).values()
    assert end == 6
    feed = FetchFeed(cluster, at, 0, end)
    piece = feed.read()
    feed.close()
    assert piece is not None
    assert list(struct.iter_unpack("=qqq", piece.aborted)) == [
        (producer.producer.producer_id, 0, 1)
    ]


def test_a_second_producer_of_the_same_name_fences_the_first(cluster: Cluster) -> None:
    cluster.create_topic("fenced", 1)
    at = Partition("fenced", 0)
    first = TransactionalProducer(cluster, "one-name")
    first.produce(at, bytearray(build(b"lost")))
    second = TransactionalProducer(cluster, "one-name")
    assert second.producer.epoch > first.producer.epoch
    with pytest.raises(Refused) as refused:
        first.commit()
    assert not refused.value.retriable


def cut(connection: Connection) -> None:
    with contextlib.suppress(OSError):
        connection._socket.shutdown(socket.SHUT_RDWR)


def test_lost_connections_are_made_again(cluster: Cluster) -> None:
    cluster.create_topic("broken", 1)
    at = Partition("broken", 0)
    for number in range(50):
        cluster.produce(at, build(b"%d" % number * 50))
    feed = FetchFeed(cluster, at, 0, 50, bytes_max=500)
    found: list[bytes | None] = []
    rounds = 0
    while (piece := feed.read()) is not None:
        rounds += 1
        found += [piece.next_offset.to_bytes(2, "big")]
        connection = feed._connection
        if connection is not None and rounds % 2:
            cut(connection)
        for node in cluster._nodes.values():
            cut(node)
    assert rounds > 5
    assert found[-1] == (50).to_bytes(2, "big")
    assert cluster.offsets({at: LATEST}) == {at: 50}


def test_what_cannot_be_reached_is_named(broker: pentalog.Broker) -> None:
    port = reserve_port()
    options = ClientOptions(timeout_ms=200)
    with pytest.raises(Unreachable, match=f"127.0.0.1:{port}"):
        Cluster(f"127.0.0.1:{port}", options).topics()
    with Cluster(f"127.0.0.1:{port},{broker.address('kafka')}", options) as cluster:
        cluster.topics()
    with (
        Cluster(broker.address("kafka"), options) as cluster,
        pytest.raises(KafkaFailed, match="absent"),
    ):
        cluster.topic("absent")


def test_what_a_broker_does_not_offer_is_named(cluster: Cluster) -> None:
    cluster.topics()
    connection = cluster._any()
    connection._versions[1] = (12, 18)
    with pytest.raises(Incompatible, match=r"offers 12\.\.18 of Fetch"):
        connection.version(1)

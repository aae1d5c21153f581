"""Topics moved from one broker to another and back, compared record by record."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import pentalog
from pentalog.clients.kafka import (
    EARLIEST,
    LATEST,
    Cluster,
    GroupOffset,
    TransactionalProducer,
    commit,
    committed,
)
from pentalog.clients.kafka import moving as subject
from pentalog.clients.kafka.moving import (
    Differs,
    configure,
    move_groups,
    move_topic,
    overrides,
    trim,
)
from pentalog.kernels import batch_header, keep_newest, shift_tombstones
from pentalog.model import batch
from pentalog.model.types import Partition, Record

SETTINGS = {
    "listen": ("kafka=127.0.0.1:0",),
    # The records here are of 1970: retention would delete them half a minute after the start.
    "topic_defaults": "retention.ms=-1",
}


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[tuple[Cluster, Cluster]]:
    with (
        pentalog.Broker(tmp_path / "one", **SETTINGS) as one,
        pentalog.Broker(tmp_path / "two", **SETTINGS) as two,
        Cluster(one.address()) as source,
        Cluster(two.address()) as target,
    ):
        yield source, target


def write(cluster: Cluster, at: Partition, *values: bytes) -> None:
    records = [Record(value, b"k" + value, (("h", b"1"), ("h", None)), 5) for value in values]
    cluster.produce(at, bytes(batch.build(records, timestamp_ms=7)))


def transact(cluster: Cluster, at: Partition, *values: bytes, end: str) -> None:
    producer = TransactionalProducer(cluster, "somebody")
    producer.produce(at, batch.build([Record(value) for value in values], timestamp_ms=7))
    if end == "commit":
        producer.commit()
    else:
        producer.abort()


def fill(cluster: Cluster, topic: str) -> None:
    """Records, transactions that end both ways, and a start that is not 0."""
    cluster.create_topic(topic, 2, {"retention.ms": "999999", "subscription.lease.ms": "77"})
    for index in range(2):
        at = Partition(topic, index)
        for number in range(30):
            write(cluster, at, *[b"%d-%d" % (number, each) for each in range(number + 1)])
        transact(cluster, at, b"no", b"no", end="abort")
        transact(cluster, at, b"yes", end="commit")
        write(cluster, at, b"last")
        transact(cluster, at, b"no", end="abort")
    trim(cluster, Partition(topic, 0), 11)
    commit(cluster, "readers", {Partition(topic, 0): GroupOffset(17, "note")})


def bounds(cluster: Cluster, topic: str) -> list[dict[Partition, int]]:
    places = [Partition(topic, index) for index in range(2)]
    return [cluster.offsets(dict.fromkeys(places, when)) for when in (EARLIEST, LATEST)]


def test_there_and_back(clusters: tuple[Cluster, Cluster], tmp_path: Path) -> None:
    source, target = clusters
    fill(source, "events")
    told: list[int] = []
    moved = move_topic(source, target, "events", told.append)
    assert moved == ("events", 2, 2 * (465 + 2) - 11, [])
    assert bounds(source, "events") == bounds(target, "events")
    assert overrides(target, "events") == overrides(source, "events")
    assert move_groups(source, target, {"events"}) == 1
    assert committed(target, "readers") == {Partition("events", 0): GroupOffset(17, "note")}
    with (
        pentalog.Broker(tmp_path / "three", **SETTINGS) as three,
        Cluster(three.address()) as home,
    ):
        assert move_topic(target, home, "events", told.append).records == moved.records
        assert bounds(home, "events") == bounds(source, "events")


def test_a_second_move_brings_what_is_new(clusters: tuple[Cluster, Cluster]) -> None:
    source, target = clusters
    fill(source, "events")
    first = move_topic(source, target, "events", lambda _: None)
    told: list[int] = []
    assert move_topic(source, target, "events", told.append) == first
    assert told == []
    write(source, Partition("events", 1), b"new", b"newer")
    assert move_topic(source, target, "events", told.append).records == first.records + 2
    assert told == [2]


class Enough(Exception):
    """The move dies here."""


def test_a_move_that_is_interrupted(clusters: tuple[Cluster, Cluster]) -> None:
    source, target = clusters
    fill(source, "events")
    deaths = 0
    moved = None
    while moved is None:
        left = [3]

        def report(_: int, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise Enough

        try:
            moved = move_topic(source, target, "events", report)
        except Enough:
            deaths += 1
    assert deaths > 10
    assert moved.records == 2 * (465 + 2) - 11
    assert bounds(source, "events") == bounds(target, "events")


def test_a_move_that_dies_in_a_transaction(
    clusters: tuple[Cluster, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = clusters
    fill(source, "events")

    def die(_: TransactionalProducer) -> None:
        raise Enough

    with monkeypatch.context() as patched:
        patched.setattr(TransactionalProducer, "abort", die)
        with pytest.raises(Enough):
            move_topic(source, target, "events", lambda _: None)
    assert move_topic(source, target, "events", lambda _: None).records == 2 * (465 + 2) - 11
    assert bounds(source, "events") == bounds(target, "events")


def test_others_who_write_are_noticed(clusters: tuple[Cluster, Cluster]) -> None:
    source, target = clusters
    fill(source, "events")
    move_topic(source, target, "events", lambda _: None)
    write(target, Partition("events", 0), b"other")
    with pytest.raises(Differs, match="somebody else has written there"):
        move_topic(source, target, "events", lambda _: None)
    write(source, Partition("events", 0), b"another")
    with pytest.raises(Differs, match="or other ones"):
        move_topic(source, target, "events", lambda _: None)


def test_times_that_the_broker_gave(clusters: tuple[Cluster, Cluster]) -> None:
    source, target = clusters
    source.create_topic("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
    write(source, Partition("stamped", 0), b"a", b"b")
    assert move_topic(source, target, "stamped", lambda _: None).records == 2
    assert overrides(target, "stamped") == {"message.timestamp.type": "LogAppendTime"}
    configure(target, "stamped", {"retention.ms": "5"})
    assert overrides(target, "stamped")["retention.ms"] == "5"


def test_another_number_of_partitions(clusters: tuple[Cluster, Cluster]) -> None:
    source, target = clusters
    source.create_topic("events", 2)
    target.create_topic("events", 3)
    with pytest.raises(Differs, match="3 partitions at the target and 2 here"):
        move_topic(source, target, "events", lambda _: None)


@pytest.mark.parametrize("cursor", [0, 12, 15, 19])
def test_batches_with_holes(cursor: int) -> None:
    """As compaction leaves them: brokers take none, so they are cut where the holes are."""
    records = [Record(b"v%d" % number, b"k%d" % number, (), number) for number in range(10)]
    whole = batch.build(records, timestamp_ms=0)
    struct.pack_into(">q", whole, 0, 10)
    kept = {record.key: 10 + number for number, record in enumerate(records)}
    for gone in (0, 3, 4, 8):
        kept[records[gone].key] = 99
    header = batch_header(whole, 0)
    payload, count, _ = keep_newest(
        memoryview(whole)[61:], 0, len(whole) - 61, 10, 10, 0, kept, drop_tombstones=False
    )
    holed = batch.rebuild(header, payload, count=count, codec=0)
    runs = list(subject._runs(batch_header(holed, 0), memoryview(holed), cursor))
    found = {}
    for first, run in runs:
        size = batch_header(run, 0)
        assert size.records == size.last_offset_delta + 1
        for offset, record in batch.records_of(run, 0, bytes_max=1 << 20):
            found[first + offset] = record
    expected = {10 + number: records[number] for number in (1, 2, 5, 6, 7, 9)}
    assert found == {offset: record for offset, record in expected.items() if offset >= cursor}


def test_a_delete_horizon_stays_behind() -> None:
    """Tombstones have their full time at the target; the timestamps of records stay the same."""
    records = [Record(None, b"gone", (), 7), Record(b"v", b"k", (), 9)]
    whole = batch.build(records, timestamp_ms=0)
    header = batch_header(whole, 0)
    shifted = shift_tombstones(memoryview(whole)[61:], 0, len(whole) - 61, 2, 7 - 1_000)
    assert shifted is not None
    attributes = header.attributes | batch.DELETE_HORIZON
    marked = header._replace(base_timestamp=1_000, attributes=attributes)
    made = batch.rebuild(marked, shifted, count=2, codec=0)
    ((first, run),) = subject._runs(batch_header(made, 0), memoryview(made), 0)
    assert batch_header(run, 0).attributes == header.attributes
    found = batch.records_of(run, 0, bytes_max=1 << 20)
    assert (first, [record for _, record in found]) == (0, records)

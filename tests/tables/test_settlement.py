"""Shares of a batch are settled once, on this broker and on Apache Kafka, without Spark."""

from __future__ import annotations

import time
import uuid
from collections import Counter

import pyarrow as pa
import pytest
from test_write_back import make_topic, records

from pentalog.clients.kafka import ClientOptions, Cluster, init_producer
from pentalog.tables import settlement
from pentalog.tables.settlement import agreed, give_up, look, settle
from pentalog.tables.shares import Batch, Share, Target, WriteRefused, name_of, write_share

TASKS = 3
ROWS = 40
PATIENCE_S = 30


class Died(Exception):
    """In place of a kill: whatever was to come does not."""


@pytest.fixture(scope="module", params=["pentalog", "kafka"])
def server(request: pytest.FixtureRequest) -> str:
    if request.param == "kafka":
        return str(request.getfixturevalue("apache"))
    return str(request.getfixturevalue("broker").address("kafka"))


class Writer:
    """A query that writes the same rows in every batch, as its driver and tasks would."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.name = f"settle-{uuid.uuid4().hex[:8]}"
        make_topic(server, self.name, 2)
        self.target = Target(server, self.name, 60_000, ClientOptions())

    def batch(self, number: int) -> Batch:
        return Batch(self.name, number, replayable=True)

    def tasks(self, number: int, tasks: int = TASKS) -> tuple[list[Share], bool]:
        """What the tasks hand to the driver."""
        shares, listed = [], []
        for task in range(tasks):
            seen = look(self.target, self.batch(number), task)
            listed.append(seen.listed)
            if not seen.listed or seen.lost is not None:
                keys = pa.array([f"{task}-{row}" for row in range(ROWS)])
                rows = pa.RecordBatch.from_arrays([keys, keys], names=["key", "value"])
                share = write_share(
                    self.target, self.batch(number), task, [rows.slice(0, 10), rows.slice(10)],
                    seen.lost,
                )  # fmt: skip
                assert share is not None
                shares.append(share)
        return shares, agreed(self.batch(number), listed)

    def write(self, number: int) -> None:
        shares, listed = self.tasks(number)
        settle(self.target, self.batch(number), shares, listed=listed)

    def counts(self) -> Counter[bytes]:
        return Counter(one.key() for one in records(self.server, self.name, 2))

    def each(self, times: int) -> bool:
        # Apache Kafka says that a transaction is committed before all of its ends are written.
        deadline = time.monotonic() + PATIENCE_S
        found = self.counts()
        while found.total() < TASKS * ROWS * times and time.monotonic() < deadline:
            found = self.counts()
        return len(found) == TASKS * ROWS and set(found.values()) == {times}


@pytest.fixture
def writer(server: str) -> Writer:
    return Writer(server)


def test_batches_are_written_once(writer: Writer) -> None:
    for number in (0, 0, 1, 1, 2):
        writer.write(number)
    assert writer.each(3)
    with pytest.raises(WriteRefused, match="comes after batch 2 was written"):
        writer.write(1)


def test_tasks_that_found_different_things_are_refused() -> None:
    batch = Batch("query", 7, replayable=True)
    assert agreed(batch, [True, True])
    assert not agreed(batch, [False, False])
    with pytest.raises(WriteRefused, match="batch 7 of query was recorded while its tasks looked"):
        agreed(batch, [False, True, True])


@pytest.mark.parametrize(
    "point", ["write-before-list", "write-in-list", "write-list", "write-share"]
)
def test_a_driver_that_dies_is_followed_by_one_that_finishes(
    writer: Writer, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(passed: str) -> None:
        if passed == point:
            raise Died

    writer.write(0)
    with monkeypatch.context() as patched:
        patched.setattr(settlement, "pass_by", die)
        with pytest.raises(Died):
            writer.write(1)
    writer.write(1)
    writer.write(2)
    assert writer.each(3)


def test_a_lost_share_is_written_again(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(passed: str) -> None:
        if passed == "write-share":
            raise Died

    with monkeypatch.context() as patched:
        patched.setattr(settlement, "pass_by", die)
        with pytest.raises(Died):
            writer.write(0)
    with Cluster(writer.server) as cluster:
        init_producer(cluster, name_of(writer.name, 2))
    writer.write(0)
    assert writer.each(1)


def test_of_two_drivers_one_is_refused(writer: Writer) -> None:
    first, listed = writer.tasks(0)
    second, _ = writer.tasks(0)
    settle(writer.target, writer.batch(0), second, listed=False)
    with pytest.raises(WriteRefused, match="another driver wrote batch 0"):
        settle(writer.target, writer.batch(0), first, listed=listed)
    give_up(writer.target, writer.batch(0), first)
    writer.write(0)
    assert writer.each(1)


def test_what_is_given_up_is_never_seen(writer: Writer) -> None:
    shares, _ = writer.tasks(0)
    give_up(writer.target, writer.batch(0), shares)
    assert writer.counts() == Counter()
    writer.write(0)
    # Listed shares are not given up any more.
    give_up(writer.target, writer.batch(0), shares)
    assert writer.each(1)


def test_lists_of_many_shares_need_many_partitions(writer: Writer) -> None:
    shares = [
        Share(task, task * 7919, 1, task, task * 0x9E3779B97F4A7C15 % (1 << 64), (writer.name, 0))
        for task in range(2000)
    ]
    with pytest.raises(WriteRefused, match="2000 tasks are too many for one batch to 1 partitions"):
        settlement._encoded(writer.batch(0), shares)
    few = settlement._encoded(writer.batch(5), shares[:150])
    (text,) = [one.metadata for one in few.values()]
    assert len(text) < 4096
    found = settlement._PIECE.fullmatch(text)
    assert found is not None
    plan = settlement._decoded(found[4], writer.name, next(iter(few)))
    assert plan == settlement.Plan(5, tuple(shares[:150]))

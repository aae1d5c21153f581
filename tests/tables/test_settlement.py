"""Shares of a batch are settled once, on this broker and on Apache Kafka, without Spark."""

from __future__ import annotations

import base64
import contextlib
import time
import tracemalloc
import uuid
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pytest
from test_write_back import make_topic, records

from pentalog.clients.kafka import ClientOptions, Cluster, init_producer
from pentalog.clients.kafka.transactions import TransactionalProducer
from pentalog.model.types import Partition
from pentalog.tables import settlement, steps
from pentalog.tables.settlement import Seen, give_up, look, settle, write_task
from pentalog.tables.shares import (
    Batch,
    Outcome,
    Share,
    Target,
    WriteRefused,
    commit_share,
    name_of,
    write_share,
)

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

    def rows(self, task: int, *, suffix: str = "") -> list[pa.RecordBatch]:
        keys = pa.array([f"{task}-{row}{suffix}" for row in range(ROWS)])
        rows = pa.RecordBatch.from_arrays([keys, keys], names=["key", "value"])
        return [rows.slice(0, 10), rows.slice(10)]

    def task(self, number: int, task: int) -> Outcome:
        return write_task(self.target, self.batch(number), task, self.rows(task))

    def late(self, number: int, task: int, *, suffix: str = "") -> Outcome:
        """What a task writes that looked for a list before there was one."""
        rows = self.rows(task, suffix=suffix)
        return write_share(self.target, self.batch(number), task, rows, None)

    def tasks(self, number: int) -> list[Outcome]:
        """What the tasks report to the driver."""
        return [self.task(number, task) for task in range(TASKS)]

    def settle(self, number: int, outcomes: list[Outcome]) -> None:
        shares = [one.share for one in outcomes if one.share is not None]
        listed = any(one.listed for one in outcomes)
        settle(self.target, self.batch(number), shares, listed=listed)

    def write(self, number: int) -> None:
        self.settle(number, self.tasks(number))

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


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, point: str) -> Iterator[None]:
    """The driver dies at `point`; at none if that is "never"."""

    def die(passed: str) -> None:
        if passed == point:
            raise Died

    expected = contextlib.nullcontext() if point == "never" else pytest.raises(Died)
    with monkeypatch.context() as patched, expected:
        patched.setattr(steps, "reached", die)
        yield


def test_batches_are_written_once(writer: Writer) -> None:
    for number in (0, 0, 1, 1, 2):
        writer.write(number)
    assert writer.each(3)
    with pytest.raises(WriteRefused, match="comes after batch 2 was written"):
        writer.write(1)


@pytest.mark.parametrize("early", [1, TASKS])
@pytest.mark.parametrize("point", ["write-list", "write-share", "never"])
def test_a_list_recorded_while_tasks_look_for_it_is_completed(
    writer: Writer, early: int, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`early` tasks look before a former driver, which dies at `point`, has recorded the list."""
    former = writer.tasks(0)
    seen = [look(writer.target, writer.batch(0), task) for task in range(early)]
    assert seen == [Seen(False, None)] * early
    with dying(monkeypatch, point):
        writer.settle(0, former)
    outcomes = [writer.late(0, task) for task in range(early)]
    writer.settle(0, outcomes + [writer.task(0, task) for task in range(early, TASKS)])
    assert writer.each(1)
    writer.write(1)
    assert writer.each(2)


def test_other_rows_of_a_task_that_looked_too_early_are_refused(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = writer.tasks(0)
    with dying(monkeypatch, "write-list"):
        writer.settle(0, former)
    outcomes = [writer.late(0, 0, suffix="-other"), writer.task(0, 1), writer.task(0, 2)]
    with pytest.raises(WriteRefused, match="its rows are not the same this time"):
        writer.settle(0, outcomes)
    give_up(writer.target, writer.batch(0), [one.share for one in outcomes if one.share])
    writer.write(0)
    assert writer.each(1)


def test_tasks_that_the_list_lacks_add_nothing(writer: Writer) -> None:
    former = writer.tasks(0)
    writer.settle(0, former)
    unlisted = writer.late(0, TASKS)
    assert unlisted.share is not None
    writer.settle(0, [*writer.tasks(0), unlisted])
    # Aborted: the partitions are readable to their ends, and there is nothing to commit.
    assert writer.each(1)
    with Cluster(writer.server) as cluster:
        assert not commit_share(cluster, writer.batch(0), unlisted.share)


def test_a_record_that_disappeared_is_reported(writer: Writer) -> None:
    outcomes = [one._replace(listed=True) for one in writer.tasks(0)]
    with pytest.raises(WriteRefused, match=r"was recorded in group .* and the record is gone"):
        writer.settle(0, outcomes)


@pytest.mark.parametrize(
    "point", ["write-before-list", "write-in-list", "write-list", "write-share"]
)
def test_a_driver_that_dies_is_followed_by_one_that_finishes(
    writer: Writer, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write(0)
    with dying(monkeypatch, point):
        writer.write(1)
    writer.write(1)
    writer.write(2)
    assert writer.each(3)


@pytest.mark.parametrize("thief", ["idle", "writing"])
def test_a_lost_share_is_written_again(
    writer: Writer, thief: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late task of a former attempt may leave a transaction open that nothing will end."""
    writer.write(0)
    with dying(monkeypatch, "write-share"):
        writer.write(1)
    if thief == "writing":
        writer.late(1, 2)
    else:
        with Cluster(writer.server) as cluster:
            init_producer(cluster, name_of(writer.name, 2))
    writer.write(1)
    assert writer.each(2)


def test_of_two_drivers_one_is_refused(writer: Writer) -> None:
    first = writer.tasks(0)
    writer.settle(0, writer.tasks(0))
    with pytest.raises(WriteRefused, match="another driver wrote batch 0"):
        writer.settle(0, first)
    give_up(writer.target, writer.batch(0), [one.share for one in first if one.share])
    writer.write(0)
    assert writer.each(1)


def test_what_is_given_up_is_never_seen(writer: Writer) -> None:
    shares = [one.share for one in writer.tasks(0) if one.share]
    give_up(writer.target, writer.batch(0), shares)
    assert writer.counts() == Counter()
    writer.write(0)
    # Listed shares are not given up any more.
    give_up(writer.target, writer.batch(0), shares)
    assert writer.each(1)


def test_a_list_that_unpacks_to_far_more_is_refused() -> None:
    bomb = base64.b64encode(zlib.compress(bytes(256 << 20), 9)).decode()
    tracemalloc.start()
    try:
        with pytest.raises(WriteRefused, match="longer than"):
            settlement._decoded(bomb, "writer", (Partition("x", 0),))
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def long_list(topic: str, tasks: int, partitions: int) -> tuple[Share, ...]:
    return tuple(
        Share(
            task, task * 7919, 1, task, task * 0x9E3779B97F4A7C15 % (1 << 64),
            (topic, task % partitions),
        )
        for task in range(tasks)
    )  # fmt: skip


def test_lists_of_many_shares_need_many_partitions(writer: Writer) -> None:
    shares = long_list(writer.name, 2000, 1)
    with pytest.raises(WriteRefused, match="2000 tasks are too many for one batch to 1 partitions"):
        settlement._encoded(writer.batch(0), shares)
    few = settlement._encoded(writer.batch(5), shares[:150])
    (text,) = [one.metadata for one in few.values()]
    assert len(text) < 4096
    found = settlement._PIECE.fullmatch(text)
    assert found is not None
    plan = settlement._decoded(found[4], writer.name, tuple(few))
    assert plan == settlement.Plan(5, shares[:150], tuple(few))


def test_a_list_takes_the_place_of_the_one_it_replaces(writer: Writer) -> None:
    """Else pieces of both would be read as one list, or the older one as the newest."""
    group = name_of(writer.name)
    with Cluster(writer.server) as cluster:

        def record(shares: Sequence[Share], homes: Sequence[Partition] = ()) -> settlement.Plan:
            producer = TransactionalProducer(cluster, group)
            producer.commit_offsets(group, settlement._encoded(writer.batch(0), shares, homes))
            producer.commit()
            # Taking the id over waits until the commit is shown.
            init_producer(cluster, group)
            plan = settlement.read_plan(cluster, writer.name)
            assert plan is not None
            return plan

        first = record(long_list(writer.name, 300, 2))
        assert [share.task for share in first.shares] == list(range(300))
        assert len(first.homes) == 2
        again = tuple(share._replace(epoch=2) for share in first.shares)
        for shares in (again, again[:3], first.shares):
            assert record(shares, first.homes) == first._replace(shares=shares)

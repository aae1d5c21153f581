"""Transactions on a real log and state file: the rules, fencing, both dialects, restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.transactions import T0, T1, U0, TransactionBench

from pentalog.broker import transaction
from pentalog.broker.transactions import EXPIRY_SWEEP_MS
from pentalog.model.errors import (
    InvalidTransactionTimeout,
    OutOfSequence,
    ProducerFenced,
    StorageFailed,
    TransactionBusy,
    TransactionState,
    TransactionUnknown,
)
from pentalog.model.later import Later
from pentalog.model.types import Ack, Horizon, Identity, Partition


class Lives:
    """One life after the other in the same directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.opened: list[TransactionBench] = []

    def __call__(self, **config: Any) -> TransactionBench:
        self.opened.append(TransactionBench(self.directory, **config))
        self.opened[-1].runtime.step()
        return self.opened[-1]


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path / "data")
    yield made
    made.opened[-1].die()


def phase(bench: TransactionBench, name: str = "x") -> str:
    return bench.transactions.view(name).phase


def test_a_commit_shows_everything_at_once(lives: Lives) -> None:
    bench = lives()
    who = bench.identify("x")
    bench.write(who, T0, 0, b"a", b"b")
    bench.write(who, U0, 0, b"c")
    bench.plain(b"outside", T0)
    assert bench.committed(T0) == bench.committed(U0) == []
    assert phase(bench) == "Ongoing"
    assert bench.store.get(T0).marks.stable == 0
    bench.end("x", who, commit=True)
    assert bench.committed(T0) == [b"a", b"b", b"outside"]
    assert bench.committed(U0) == [b"c"]
    assert phase(bench) == "CompleteCommit"
    assert bench.store.get(T0).marks.stable == 4


def test_an_abort_hides_everything(lives: Lives) -> None:
    bench = lives()
    who = bench.identify("x")
    bench.plain(b"before", T0)
    bench.write(who, T0, 0, b"a")
    bench.write(who, T1, 0, b"b")
    bench.plain(b"between", T0)
    again = bench.end("x", who, commit=False)
    bench.write(again, T0, 0, b"kept")
    bench.end("x", again, commit=True)
    assert bench.committed(T0) == [b"before", b"between", b"kept"]
    assert bench.committed(T1) == []


def test_the_end_waits_for_the_disk(lives: Lives) -> None:
    bench = lives()
    who = bench.identify("x")
    bench.write(who, T0, 0, b"a")
    bench.write(who, T1, 0, b"b")
    bench.runtime.held_lanes.add("state")
    later = bench.transactions.end("x", who, commit=True, bump=True)
    bench.runtime.step()
    assert not later.ready
    ends = [bench.store.get(at).end_offset for at in (T0, T1)]
    assert ends == [1, 1], "a marker was written before the decision was safe"
    bench.runtime.held_lanes = {"journal", "sync"}
    bench.runtime.step()
    assert not later.ready
    assert [bench.store.get(at).end_offset for at in (T0, T1)] == [2, 2]
    assert bench.committed(T0) == [], "seen before its marker was safe"
    bench.runtime.held_lanes.clear()
    bench.runtime.step()
    assert later.value == Identity(who.producer_id, who.epoch + 1)
    assert bench.committed(T0) == [b"a"]


def test_a_lone_partition_is_not_seen_before_its_marker_is_safe(lives: Lives) -> None:
    bench = lives()
    who = bench.identify("x")
    bench.write(who, T0, 0, b"a")
    bench.runtime.held_lanes = {"journal", "sync"}
    later = bench.transactions.end("x", who, commit=True, bump=True)
    bench.runtime.step()
    assert bench.store.get(T0).end_offset == 2
    assert not later.ready
    assert bench.committed(T0) == []
    bench.runtime.held_lanes.clear()
    bench.runtime.step()
    assert later.ready
    assert bench.committed(T0) == [b"a"]


def test_a_commit_wakes_those_who_wait_for_stable_records(lives: Lives) -> None:
    bench = lives()
    who = bench.identify("x")
    bench.write(who, T0, 0, b"a")
    waiting = bench.log.wait({T0: 0}, bytes_min=1, horizon=Horizon.STABLE, timeout_ms=60_000)
    bench.runtime.step()
    assert not waiting.ready
    bench.end("x", who, commit=True)
    assert waiting.ready
    assert waiting.value is True


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("bump", [True, False])
def test_an_end_asked_again_is_answered_again(lives: Lives, commit: bool, bump: bool) -> None:
    bench = lives()
    who = bench.identify("x")
    bench.write(who, T0, 0, b"a")
    first = bench.transactions.end("x", who, commit=commit, bump=bump)
    second = bench.transactions.end("x", who, commit=commit, bump=bump)
    bench.runtime.step()
    assert first.value == second.value == bench.end("x", who, commit=commit, bump=bump)
    assert first.value.epoch == who.epoch + int(bump)
    with pytest.raises(TransactionState):
        bench.end("x", who, commit=not commit, bump=bump)
    assert bench.store.get(T0).end_offset == 2


def test_what_is_written_late_is_fenced_by_the_new_epoch(lives: Lives) -> None:
    bench = lives()
    who = bench.identify("x")
    bench.write(who, T0, 0, b"a")
    after = bench.end("x", who, commit=True)
    with pytest.raises(ProducerFenced):
        bench.write(who, T0, 1, b"late")
    with pytest.raises(ProducerFenced):
        bench.append(
            b"past the rules", at=T0, producer_id=who.producer_id, producer_epoch=who.epoch,
            base_sequence=1, transactional=True,
        )  # fmt: skip
    with pytest.raises(OutOfSequence):
        bench.write(after, T0, 1, b"the first sequence of an epoch is 0")
    bench.write(after, T0, 0, b"b")
    bench.end("x", after, commit=True)
    assert bench.committed(T0) == [b"a", b"b"]


def test_the_old_dialect_adds_partitions_first_and_keeps_its_epoch(lives: Lives) -> None:
    bench = lives()
    who = bench.identify("x")
    with pytest.raises(TransactionState):
        bench.write(who, T0, 0, b"a", enlists=False)
    with pytest.raises(TransactionState):
        bench.end("x", who, commit=True, bump=False)
    bench.transactions.enlist("x", who, [T0, T1])
    assert bench.transactions.enlisted("x", who, T1)
    bench.write(who, T0, 0, b"a", enlists=False)
    assert bench.end("x", who, commit=True, bump=False) == who
    bench.transactions.enlist("x", who, [T0])
    assert not bench.transactions.enlisted("x", who, T1)
    bench.write(who, T0, 1, b"b", enlists=False)
    assert bench.end("x", who, commit=True, bump=False) == who
    assert bench.committed(T0) == [b"a", b"b"]


def test_a_new_life_of_the_producer_fences_the_old_one(lives: Lives) -> None:
    bench = lives()
    old = bench.identify("x")
    bench.write(old, T0, 0, b"lost")
    new = bench.identify("x")
    assert new.producer_id == old.producer_id
    assert new.epoch > old.epoch
    assert bench.committed(T0) == []
    for work in (
        lambda: bench.write(old, T0, 1, b"zombie"),
        lambda: bench.transactions.enlist("x", old, [T0]),
        lambda: bench.end("x", old, commit=True),
        lambda: bench.identify("x", old),
        lambda: bench.stage("x", old, "g", T0, 1),
    ):
        with pytest.raises(ProducerFenced):
            work()
    bench.write(new, T0, 0, b"kept")
    bench.end("x", new, commit=True)
    assert bench.committed(T0) == [b"kept"]


def test_a_producer_may_ask_for_its_next_epoch(lives: Lives) -> None:
    bench = lives()
    first = bench.identify("x")
    second = bench.identify("x", first)
    assert second == Identity(first.producer_id, first.epoch + 1)
    assert bench.identify("x", first) == second, "the answer was lost: the same one again"
    third = bench.identify("x")
    with pytest.raises(ProducerFenced):
        bench.identify("x", second)
    assert third.epoch == second.epoch + 1


def test_identities_asked_for_together_differ(lives: Lives) -> None:
    bench = lives()
    who = bench.identify("x")
    bench.write(who, T0, 0, b"a")
    asked = [bench.transactions.identify("x", timeout_ms=100) for _ in range(5)]
    new = [bench.transactions.identify("new", timeout_ms=100) for _ in range(5)]
    bench.runtime.step()
    assert len({later.value for later in asked}) == 5
    assert len({later.value for later in new}) == 5
    assert {later.value.producer_id for later in asked} == {who.producer_id}


def test_who_waits_for_an_end_is_told_to_come_back_if_there_are_too_many(lives: Lives) -> None:
    bench = lives()
    bench.identify("x")
    asked = [bench.transactions.identify("x", timeout_ms=100) for _ in range(200)]
    bench.runtime.step()
    refused = 0
    for later in asked:
        try:
            _ = later.value
        except TransactionBusy:
            refused += 1
    assert 0 < refused < 150


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeouts_have_bounds(lives: Lives, timeout_ms: int) -> None:
    with pytest.raises(InvalidTransactionTimeout):
        lives().identify("x", timeout_ms=timeout_ms)


@pytest.mark.parametrize("wall_step_ms", [0, 3_600_000, -3_600_000])
def test_a_transaction_that_takes_too_long_is_aborted(lives: Lives, wall_step_ms: int) -> None:
    bench = lives()
    who = bench.identify("x", timeout_ms=5000)
    bench.write(who, T0, 0, b"slow")
    bench.runtime.wall_step_ms += wall_step_ms
    bench.stage("x", who, "g", T1, 5)
    bench.runtime.advance(4000)
    assert phase(bench) == "Ongoing"
    bench.runtime.advance(2500)
    assert phase(bench) == "CompleteAbort"
    assert bench.committed(T0) == []
    assert bench.store.get(T0).marks.stable == 2
    assert not bench.offsets.staged()
    with pytest.raises(ProducerFenced):
        bench.end("x", who, commit=True)
    with pytest.raises(ProducerFenced):
        bench.end("x", who, commit=True, bump=False)


def test_offsets_become_real_with_the_transaction(lives: Lives) -> None:
    bench = lives()
    who = bench.identify("x")
    with pytest.raises(TransactionState):
        bench.transactions.stage("x", who, "g", {}, enlists=False)
    bench.transactions.enlist_group("x", who, "g")
    bench.stage("x", who, "g", T0, 7)
    assert bench.offset_of("g", T0) is None
    assert bench.offsets.unstable("g", T0)
    who = bench.end("x", who, commit=True)
    assert bench.offset_of("g", T0) == 7
    assert not bench.offsets.unstable("g", T0)
    bench.stage("x", who, "g", T0, 9)
    bench.end("x", who, commit=False)
    assert bench.offset_of("g", T0) == 7


def test_strangers_are_refused(lives: Lives) -> None:
    bench = lives()
    who = bench.identify("x")
    stranger = Identity(who.producer_id + 1, who.epoch)
    for work in (
        lambda: bench.transactions.enlist("nobody", who, [T0]),
        lambda: bench.transactions.enlist("x", stranger, [T0]),
        lambda: bench.end("nobody", who, commit=True),
        lambda: bench.end("x", stranger, commit=True),
        lambda: bench.transactions.admit("x", stranger, T0, enlists=True),
        lambda: bench.transactions.admit("nobody", who, T0, enlists=True),
        lambda: bench.transactions.view("nobody"),
    ):
        with pytest.raises(TransactionUnknown):
            work()


def test_while_it_ends_nothing_may_be_added(lives: Lives) -> None:
    bench = lives()
    who = bench.identify("x")
    bench.write(who, T0, 0, b"a")
    bench.runtime.held_lanes = {"journal", "sync", "state"}
    bench.transactions.end("x", who, commit=True, bump=False)
    with pytest.raises(TransactionBusy):
        bench.transactions.admit("x", who, T1, enlists=True)
    with pytest.raises(TransactionBusy):
        bench.transactions.enlist("x", who, [T1])
    with pytest.raises(TransactionState):
        bench.transactions.end("x", who, commit=False, bump=False)
    bench.runtime.held_lanes.clear()


def test_used_up_epochs_bring_a_new_id(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("transaction", "transactions"):
        monkeypatch.setattr(f"pentalog.broker.{module}.EPOCH_LAST", 4)
    assert transaction.EPOCH_LAST == 4
    bench = lives()
    who = bench.identify("x")
    ids, epochs = [], []
    for number in range(12):
        bench.write(who, T0, 0, b"%d" % number)
        before = who
        who = bench.end("x", who, commit=True)
        assert bench.end("x", before, commit=True) == who, "asked again"
        ids.append(who.producer_id)
        epochs.append(who.epoch)
    assert epochs == [1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2]
    assert len(set(ids)) == 3
    assert bench.committed(T0) == [b"%d" % number for number in range(12)]
    known = who
    for _ in range(12):
        before, known = known, bench.identify("x", known)
        assert bench.identify("x", before) == known
    assert len({bench.identify("x") for _ in range(12)}) == 12
    bench.die()
    again = lives()
    assert again.identify("x").producer_id not in ids[:1]


def test_open_transactions_survive_a_restart(lives: Lives) -> None:
    for clean in (True, False):
        bench = lives()
        who = bench.identify("x")
        bench.write(who, T0, 0, b"a%d" % clean)
        bench.write(who, U0, 0, b"b%d" % clean)
        bench.stage("x", who, "g", T1, 3 + clean)
        bench.stop() if clean else bench.die()
        bench = lives()
        assert phase(bench) == "Ongoing"
        assert set(bench.transactions.view("x").partitions) == {T0, U0}
        bench.write(who, T0, 1, b"c%d" % clean)
        bench.end("x", who, commit=True)
        assert bench.offset_of("g", T1) == 3 + clean
        bench.die()
    bench = lives()
    assert bench.committed(T0) == [b"a1", b"c1", b"a0", b"c0"]
    assert bench.committed(U0) == [b"b1", b"b0"]


def test_a_transaction_of_nobody_is_aborted_at_the_start(lives: Lives) -> None:
    bench = lives()
    bench.settled(
        b"hanging", at=T0, producer_id=77, producer_epoch=3, base_sequence=0, transactional=True
    )
    assert bench.store.get(T0).marks.stable == 0
    bench.stop()
    bench = lives()
    assert bench.committed(T0) == []
    assert bench.store.get(T0).marks.stable == 2


def test_a_transaction_of_a_fenced_life_is_aborted_at_the_start(lives: Lives) -> None:
    bench = lives()
    old = bench.identify("x")
    new = bench.identify("x")
    bench.settled(
        b"hanging", at=T0, producer_id=old.producer_id, producer_epoch=old.epoch, base_sequence=0,
        transactional=True,
    )  # fmt: skip
    bench.stop()
    bench = lives()
    assert bench.store.get(T0).marks.stable == 2
    assert phase(bench) == "Empty"
    bench.write(new, T0, 0, b"kept")
    bench.end("x", new, commit=True)
    assert bench.committed(T0) == [b"kept"]


def test_an_older_prepared_row_does_not_end_a_newer_transaction(lives: Lives) -> None:
    """A transaction without offsets leaves its row as it was prepared: it must not do harm."""
    bench = lives()
    who = bench.identify("x")
    bench.transactions.enlist("x", who, [T0])
    bench.write(who, T0, 0, b"first", enlists=False)
    bench.end("x", who, commit=True, bump=False)
    bench.transactions.enlist("x", who, [T0])
    bench.write(who, T0, 1, b"second", enlists=False)
    bench.stage("x", who, "g", T1, 4)
    bench.die()
    bench = lives()
    assert bench.committed(T0) == [b"first"]
    assert bench.offset_of("g", T1) is None
    assert phase(bench) == "Ongoing"
    bench.end("x", who, commit=False, bump=False)
    assert bench.committed(T0) == [b"first"]
    assert bench.offset_of("g", T1) is None


def test_a_marker_by_hand_ends_what_hangs(lives: Lives) -> None:
    bench = lives()
    bench.settled(
        b"hanging", at=T0, producer_id=77, producer_epoch=3, base_sequence=0, transactional=True
    )
    with pytest.raises(ProducerFenced):
        bench.transactions.mark(Identity(77, 2), T0, commit=False)
    (writer,) = bench.transactions.writers(T0)
    assert (writer.who, writer.transaction_start) == (Identity(77, 3), 0)
    later = bench.transactions.mark(writer.who, T0, commit=False)
    bench.runtime.step()
    assert later.value is None
    assert bench.committed(T0) == []
    assert bench.store.get(T0).marks.stable == 2


def test_names_nobody_uses_are_forgotten(lives: Lives) -> None:
    bench = lives(transactional_id_expiration_ms=1000)
    idle = bench.identify("idle")
    bench.identify("busy", timeout_ms=900_000)
    bench.runtime.advance(EXPIRY_SWEEP_MS - 500)
    bench.identify("busy")
    bench.runtime.advance(1000)
    assert [view.name for view in bench.transactions.all() if view] == ["busy"]
    with pytest.raises(TransactionUnknown):
        bench.end("idle", idle, commit=True)
    bench.die()
    assert [view.name for view in lives().transactions.all() if view] == ["busy"]


def test_names_can_be_looked_for(lives: Lives) -> None:
    bench = lives()
    for name in ("orders-1", "orders-2", "other"):
        bench.identify(name)
    found = bench.transactions.all("orders-[0-9]")
    assert [view.name for view in found if view] == ["orders-1", "orders-2"]


def test_a_deleted_topic_does_not_hold_up_an_end(lives: Lives) -> None:
    bench = lives()
    who = bench.identify("x")
    bench.write(who, T0, 0, b"a")
    bench.write(who, U0, 0, b"b")
    bench.store.delete(U0)
    bench.end("x", who, commit=True)
    assert bench.committed(T0) == [b"a"]


def test_a_batch_outside_the_open_transaction_is_refused(lives: Lives) -> None:
    bench = lives()
    who = bench.identify("x")
    bench.write(who, T0, 0, b"a")
    with pytest.raises(TransactionState):
        bench.append(
            b"b", at=T0, producer_id=who.producer_id, producer_epoch=who.epoch, base_sequence=1
        )


def test_a_partition_that_takes_no_writes_holds_up_the_end(lives: Lives) -> None:
    bench = lives()
    who = bench.identify("x")
    bench.write(who, T0, 0, b"a")
    bench.write(who, U0, 0, b"b")
    bench.store.get(U0).fail(OSError("gone"))
    with pytest.raises(TransactionBusy):
        bench.end("x", who, commit=True)
    bench.runtime.advance(3000)
    assert phase(bench) == "PrepareCommit"
    with pytest.raises(TransactionState):
        bench.end("x", who, commit=False)
    bench.die()
    bench = lives()
    assert bench.committed(T0) == [b"a"]
    assert bench.committed(U0) == [b"b"]
    assert phase(bench) == "CompleteCommit"


def test_a_state_file_that_fails_holds_up_the_end(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    bench = lives()
    who = bench.identify("x")
    bench.write(who, T0, 0, b"a")
    bench.write(who, U0, 0, b"b")
    with monkeypatch.context() as broken:
        broken.setattr("pentalog.broker.state._apply", fail)
        with pytest.raises(TransactionBusy):
            bench.end("x", who, commit=True)
        assert bench.committed(T0) == bench.committed(U0) == []
        with pytest.raises(StorageFailed):
            bench.identify("y")
    bench.runtime.advance(5000)
    assert bench.committed(T0) == [b"a"]
    assert bench.committed(U0) == [b"b"]
    assert bench.end("x", who, commit=True).epoch == who.epoch + 1


def test_many_transactions_share_syncs(lives: Lives) -> None:
    bench = lives()
    who = [bench.identify(f"x{n}") for n in range(50)]
    for one in who:
        bench.write(one, T0, 0, b"a")
        bench.write(one, T1, 0, b"b")
    before = bench.metrics.syncs
    ends: list[Later[Identity]] = [
        bench.transactions.end(f"x{n}", one, commit=True, bump=True) for n, one in enumerate(who)
    ]
    bench.runtime.step()
    assert all(later.ready for later in ends)
    assert bench.metrics.syncs - before <= 4
    assert len(bench.committed(T0)) == 50


def test_transactions_across_segments(lives: Lives) -> None:
    bench = lives()
    at = Partition("t", 0)
    bench.partition(at, segment_bytes=300, index_interval_bytes=50)
    long, short = bench.identify("long", timeout_ms=900_000), bench.identify("short")
    expected: list[bytes] = []
    bench.write(long, at, 0, b"long 0")
    for number in range(1, 30):
        bench.write(short, at, 0, b"short %d" % number)
        bench.write(long, at, number, b"long %d" % number)
        short = bench.end("short", short, commit=number % 3 == 0)
    assert len(bench.store.get(at).segments) > 5
    assert bench.committed(at) == []
    bench.end("long", long, commit=True)
    values = [record.value or b"" for _, record in bench.read(at=at)]
    for value in values:
        name, _, count = value.partition(b" ")
        if name == b"long" or (name == b"short" and int(count) % 3 == 0):
            expected.append(value)
    assert bench.committed(at) == expected
    bench.die()
    assert lives().committed(at) == expected


def test_read_marks_of_a_transaction_whose_begin_is_gone(lives: Lives) -> None:
    bench = lives()
    bench.partition(T0, segment_bytes=200)
    who = bench.identify("x", timeout_ms=900_000)
    for number in range(10):
        bench.write(who, T0, number, b"%d" % number * 50)
    bench.store.get(T0).trim(5)
    bench.store.write_starts()
    marks = bench.store.get(T0).marks
    assert marks.start <= marks.stable <= marks.durable
    bench.end("x", who, commit=True)
    assert len(bench.committed(T0)) == 5


def test_acks_of_transactional_writes_need_no_marker(lives: Lives) -> None:
    bench = lives()
    who = bench.identify("x")
    bench.transactions.admit("x", who, T0, enlists=True)
    appended = bench.append(
        b"a", at=T0, producer_id=who.producer_id, producer_epoch=0, base_sequence=0,
        transactional=True,
    )  # fmt: skip
    later = bench.log.settle(appended, Ack.DURABLE)
    bench.runtime.step()
    assert later.ready

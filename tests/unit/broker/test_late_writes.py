"""Transactions in the wrong moment: writes after their end, and topics that go meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.transactions import T0, T1, U0, TransactionBench

from pentalog.broker.transactions import ADDED_MS
from pentalog.model.errors import TransactionState


def test_a_transaction_is_whole_after_a_deletion_that_a_crash_took_back(tmp_path: Path) -> None:
    """Its other partition must not be marked before the decision is on the disk."""
    bench = TransactionBench(tmp_path)
    who = bench.identify("x")
    bench.write(who, T0, 0, b"a")
    bench.write(who, U0, 0, b"b")
    bench.store.hide(U0)
    bench.transactions.end("x", who, commit=True, bump=False)
    bench.die()
    bench = TransactionBench(tmp_path)
    bench.identify("x")
    assert bench.committed(T0) == bench.committed(U0) == []
    bench.stop()


def test_a_late_write_is_refused(tmp_path: Path) -> None:
    bench = TransactionBench(tmp_path)
    who = bench.identify("x")
    bench.write(who, T0, 0, b"a")
    bench.end("x", who, commit=True, bump=False)
    with pytest.raises(TransactionState):
        bench.write(who, T0, 1, b"late", enlists=False)
    marks = bench.store.get(T0).marks
    assert marks.stable == marks.durable
    bench.stop()


def test_a_late_write_is_refused_after_a_restart_too(tmp_path: Path) -> None:
    """Otherwise it would begin a transaction that holds readers up until it times out."""
    bench = TransactionBench(tmp_path)
    who = bench.identify("x")
    bench.transactions.enlist("x", who, [T0])
    bench.transactions.enlist_group("x", who, "g")
    bench.write(who, T0, 0, b"a", enlists=False)
    bench.end("x", who, commit=True, bump=False)
    bench.die()
    bench = TransactionBench(tmp_path)
    with pytest.raises(TransactionState):
        bench.write(who, T0, 1, b"late", enlists=False)
    with pytest.raises(TransactionState):
        bench.stage("x", who, "g", T1, 4, enlists=False)
    marks = bench.store.get(T0).marks
    assert marks.stable == marks.durable
    bench.transactions.enlist("x", who, [T0])
    bench.write(who, T0, 1, b"b", enlists=False)
    bench.end("x", who, commit=True, bump=False)
    assert bench.committed(T0) == [b"a", b"b"]
    bench.stop()


def test_what_was_added_without_data_takes_part_after_a_restart(tmp_path: Path) -> None:
    bench = TransactionBench(tmp_path)
    who = bench.identify("x")
    for _ in range(3):
        bench.transactions.enlist("x", who, [T0])
        bench.transactions.enlist("x", who, [T0, T1])
        bench.transactions.enlist_group("x", who, "g")
        bench.runtime.advance(ADDED_MS)
        bench.die()
        bench = TransactionBench(tmp_path)
    bench.write(who, T1, 0, b"a", enlists=False)
    bench.stage("x", who, "g", T0, 4, enlists=False)
    bench.end("x", who, commit=True, bump=False)
    assert bench.committed(T1) == [b"a"]
    assert bench.offset_of("g", T0) == 4
    assert not bench.state.rows("SELECT * FROM enlisted")
    bench.stop()


def test_a_clean_stop_forgets_nothing_that_was_added(tmp_path: Path) -> None:
    bench = TransactionBench(tmp_path)
    who = bench.identify("x")
    bench.transactions.enlist("x", who, [T0])
    bench.stop()
    bench = TransactionBench(tmp_path)
    bench.write(who, T0, 0, b"a", enlists=False)
    bench.end("x", who, commit=True, bump=False)
    assert bench.committed(T0) == [b"a"]
    bench.stop()


def test_a_short_transaction_needs_no_rows_of_what_was_added(tmp_path: Path) -> None:
    """Each would be a commit more; clients that add partitions pay it for every transaction."""
    bench = TransactionBench(tmp_path)
    who = bench.identify("x")
    begun = bench.state.position
    bench.write(who, T0, 0, b"a")
    bench.end("x", who, commit=True, bump=False)
    unadded = bench.state.position - begun
    begun = bench.state.position
    bench.transactions.enlist("x", who, [T0])
    bench.runtime.advance(ADDED_MS - 1)
    bench.write(who, T0, 1, b"b", enlists=False)
    bench.end("x", who, commit=True, bump=False)
    bench.runtime.advance(ADDED_MS)
    assert bench.state.position - begun == unadded
    assert not bench.state.rows("SELECT * FROM enlisted")
    bench.stop()


def test_a_partition_whose_addition_a_crash_took_is_added_again(tmp_path: Path) -> None:
    bench = TransactionBench(tmp_path)
    who = bench.identify("x")
    bench.transactions.enlist("x", who, [T0])
    bench.die()
    bench = TransactionBench(tmp_path)
    with pytest.raises(TransactionState, match="add it first"):
        bench.write(who, T0, 0, b"a", enlists=False)
    bench.end("x", who, commit=False, bump=False)
    bench.transactions.enlist("x", who, [T0])
    bench.write(who, T0, 0, b"a", enlists=False)
    bench.end("x", who, commit=True, bump=False)
    assert bench.committed(T0) == [b"a"]
    bench.stop()

"""Transactions across restarts: late batches, added participants, topics being deleted."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.transactions import T0, T1, U0, TransactionBench

from pentalog.broker.transactions import ADDED_MS
from pentalog.model.errors import TransactionState
from pentalog.model.types import Identity


def test_a_transaction_stays_atomic_if_a_crash_undoes_a_topic_deletion(tmp_path: Path) -> None:
    """No marker is written before the decision is durable."""
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


def with_added_partition(directory: Path) -> tuple[TransactionBench, Identity]:
    """A transaction with a partition that is not in the state file yet."""
    bench = TransactionBench(directory)
    who = bench.identify("x")
    bench.transactions.enlist("x", who, [T0])
    return bench, who


def test_a_clean_stop_keeps_added_partitions(tmp_path: Path) -> None:
    bench, who = with_added_partition(tmp_path)
    bench.stop()
    bench = TransactionBench(tmp_path)
    bench.write(who, T0, 0, b"a", enlists=False)
    bench.end("x", who, commit=True, bump=False)
    assert bench.committed(T0) == [b"a"]
    bench.stop()


def test_a_short_transaction_writes_no_rows_of_participants(tmp_path: Path) -> None:
    """Each row would be another commit for clients that call AddPartitionsToTxn."""
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
    bench, who = with_added_partition(tmp_path)
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

"""What transactions owe to the log: markers that no setting refuses, epochs that it knows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.transactions import T0, TransactionBench

from pentalog.broker.state import FILE_NAME
from pentalog.model.errors import ProducerFenced
from pentalog.model.settings import LogSettings


def test_a_marker_is_written_whatever_size_the_topic_accepts(tmp_path: Path) -> None:
    bench = TransactionBench(tmp_path)
    who = bench.identify("x")
    bench.write(who, T0, 0, b"a")
    bench.store.configure(T0, LogSettings(message_bytes_max=0))
    bench.end("x", who, commit=True)
    assert bench.committed(T0) == [b"a"]
    bench.stop()


def test_an_epoch_that_has_written_is_not_given_again(tmp_path: Path) -> None:
    """A power cut took the newest row of the state, which is not synced, but not the batches."""
    bench = TransactionBench(tmp_path)
    known = bench.identify("x")
    bench.write(known, T0, 0, b"a")
    bench.end("x", known, commit=True, bump=False)
    newer = bench.identify("x")
    bench.write(newer, T0, 0, b"b")
    bench.end("x", newer, commit=True, bump=False)
    bench.stop()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as state, state:
        state.execute("UPDATE transactions SET epoch = ?", (known.epoch,))
    again = TransactionBench(tmp_path)
    given = again.identify("x")
    assert given.producer_id == newer.producer_id
    assert given.epoch > newer.epoch
    again.write(given, T0, 0, b"c")
    again.end("x", given, commit=True)
    assert again.committed(T0) == [b"a", b"b", b"c"]
    with pytest.raises(ProducerFenced):
        again.write(newer, T0, 1, b"late")
    again.stop()


def test_a_producer_with_an_open_transaction_is_not_forgotten(tmp_path: Path) -> None:
    """More have one open than may be remembered: only what is not needed is forgotten."""
    bench = TransactionBench(tmp_path, producers_max=20)
    writers = {
        f"x{number}": bench.identify(f"x{number}", timeout_ms=60_000) for number in range(30)
    }
    for name, who in writers.items():
        bench.write(who, T0, 0, name.encode())
    assert len(bench.store.get(T0).producers) == len(writers)
    for number, (name, who) in enumerate(writers.items()):
        bench.end(name, who, commit=number % 2 == 0)
    assert bench.committed(T0) == [b"x%d" % number for number in range(0, 30, 2)]
    bench.stop()
    again = TransactionBench(tmp_path, producers_max=20)
    assert again.committed(T0) == [b"x%d" % number for number in range(0, 30, 2)]
    again.stop()

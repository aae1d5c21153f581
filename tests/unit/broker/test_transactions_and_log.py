"""What transactions owe to the log: markers that no setting refuses, epochs that it knows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.transactions import T0, TransactionBench

from pentalog.broker.state import FILE_NAME
from pentalog.kernels import batch_header
from pentalog.model import batch
from pentalog.model.errors import ProducerFenced
from pentalog.model.settings import LogSettings
from pentalog.model.types import Ack, Horizon, Record


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


def test_a_reader_of_many_aborted_transactions_reads_nothing_twice(tmp_path: Path) -> None:
    """Batches beyond those that one read looks at, and what was aborted there, cost it nothing."""
    bench = TransactionBench(tmp_path)
    shown = []
    for number in range(5_000):
        built = batch.build(
            [Record(b"")], timestamp_ms=1, producer_id=1_000 + number % 3, producer_epoch=0,
            base_sequence=number // 3, transactional=True,
        )  # fmt: skip
        bench.log.append(T0, memoryview(built))
        if number % 1_000 == 0:
            plain = batch.build([Record(b"%d" % number)], timestamp_ms=1)
            shown.append(bench.log.append(T0, memoryview(plain)).base_offset)
        marker = batch.build_marker(
            commit=False, producer_id=1_000 + number % 3, producer_epoch=0, timestamp_ms=1
        )
        appended = bench.log.append(T0, memoryview(marker))
    bench.log.settle(appended, Ack.DURABLE)
    bench.runtime.step()
    offset, seen, read_bytes = 0, [], bench.metrics.read_bytes
    while offset < appended.next_offset:
        later = bench.log.open(T0, offset, bytes_max=16 << 20, horizon=Horizon.STABLE)
        bench.runtime.step()
        opened = later.value
        assert opened.next_offset > offset
        offset = opened.next_offset
        position = 0
        while position < len(opened.batches):
            header = batch_header(opened.batches, position)
            seen.append(header.base_offset)
            position += header.size
    assert seen == shown
    assert bench.metrics.read_bytes - read_bytes == bench.log.size_bytes(T0)
    bench.stop()

"""Transactional writes that arrive late, after their transaction has ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.transactions import T0, TransactionBench

from pentalog.model.errors import ProducerFenced, TransactionState


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


def test_after_a_restart_a_late_write_holds_readers_up_until_its_timeout(tmp_path: Path) -> None:
    """Kafka refuses the write, since it keeps on disk which partitions were added."""
    bench = TransactionBench(tmp_path)
    who = bench.identify("x", timeout_ms=5000)
    bench.write(who, T0, 0, b"a")
    bench.end("x", who, commit=True, bump=False)
    bench.die()
    bench = TransactionBench(tmp_path)
    bench.write(who, T0, 1, b"late", enlists=False)
    held = bench.store.get(T0).marks
    assert held.stable < held.durable
    bench.runtime.advance(6500)
    marks = bench.store.get(T0).marks
    assert marks.stable == marks.durable
    assert bench.committed(T0) == [b"a"]
    with pytest.raises(ProducerFenced):
        bench.write(who, T0, 2, b"later", enlists=False)
    bench.stop()

"""When the flusher syncs what nobody waits for."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.faults import FaultyFiles
from tests.support.logs import LogBench

from pentalog.model.types import Partition

SLOW, QUICK = Partition("slow", 0), Partition("quick", 0)


@pytest.fixture
def bench(tmp_path: Path) -> LogBench:
    """A topic that is synced after ten seconds, and one that is after 50 ms."""
    bench = LogBench(tmp_path, files=FaultyFiles(), flush_interval_ms=10_000)
    bench.partition(SLOW)
    bench.partition(QUICK, flush_ms=50)
    return bench


def durable(bench: LogBench, at: Partition) -> int:
    return bench.store.get(at).durable.offset


def test_a_short_interval_does_not_wait_for_a_longer_one(bench: LogBench) -> None:
    for written in range(1, 4):
        bench.append(b"value", at=SLOW)
        bench.runtime.advance(10)
        bench.append(b"value", at=QUICK)
        bench.runtime.advance(49)
        assert durable(bench, QUICK) == written - 1
        bench.runtime.advance(1)
        assert durable(bench, QUICK) == written


def test_a_long_interval_is_not_extended_by_a_shorter_one(bench: LogBench) -> None:
    bench.append(b"value", at=SLOW)
    bench.runtime.advance(9_990)
    assert durable(bench, SLOW) == 0
    bench.append(b"value", at=QUICK)  # is due after the other one
    bench.runtime.advance(10)
    assert durable(bench, SLOW) == 1


def test_what_is_written_after_a_sync_is_synced_as_well(bench: LogBench) -> None:
    bench.append(b"value", at=QUICK)
    bench.runtime.advance(50)
    bench.append(b"value", at=SLOW)
    bench.runtime.advance(9_999)
    assert durable(bench, SLOW) == 0
    bench.runtime.advance(1)
    assert durable(bench, SLOW) == 1

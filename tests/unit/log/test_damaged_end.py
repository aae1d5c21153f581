"""Readers of a partition whose last records are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.logs import AT, LogBench

from pentalog.model.types import Horizon


@pytest.fixture
def bench(tmp_path: Path) -> LogBench:
    """Offset 0 is sound, 1 and 2 are damaged, and a clean stop says that they are there."""
    bench = LogBench(tmp_path)
    path = bench.partition().active.path(".log")
    for value in (b"sound", b"broken", b"broken"):
        bench.settled(value)
    bench.store.close()
    path.write_bytes(path.read_bytes().replace(b"broken", b"BROKEN"))
    return LogBench(tmp_path)


def test_a_reader_is_sent_behind_the_damage(bench: LogBench) -> None:
    for offset in (1, 2):
        opened = bench.log.open(AT, offset, bytes_max=1 << 20, horizon=Horizon.STABLE).value
        assert (bytes(opened.batches), opened.next_offset) == (b"", 3)


@pytest.mark.parametrize("horizon", [Horizon.DURABLE, Horizon.STABLE])
def test_a_wait_at_the_damage_lasts_until_something_is_written(
    bench: LogBench, horizon: Horizon
) -> None:
    bench.log.open(AT, 1, bytes_max=1 << 20, horizon=horizon)  # the damage is found by a read
    waiting = bench.log.wait({AT: 1}, bytes_min=1, horizon=horizon, timeout_ms=60_000)
    bench.runtime.advance(1_000)
    assert not waiting.ready
    bench.settled(b"next")
    assert waiting.value
    assert list(bench.values(1)) == [3]


@pytest.mark.parametrize("flush_interval_ms", [0, 100], ids=["page cache", "synced"])
def test_what_is_written_behind_the_damage_outlives_a_killed_process(
    tmp_path: Path, flush_interval_ms: int
) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=flush_interval_ms)
    path = bench.partition().active.path(".log")
    for value in (b"sound", b"broken", b"broken"):
        bench.settled(value)
    bench.store.close()  # the recovery point is behind them
    LogBench(tmp_path, flush_interval_ms=flush_interval_ms).crash()
    path.write_bytes(path.read_bytes().replace(b"broken", b"BROKEN"))
    for lives in range(3):
        bench = LogBench(tmp_path, flush_interval_ms=flush_interval_ms)
        assert list(bench.values()) == [0, *range(3, 3 + lives)]
        bench.append(b"next")
        bench.crash()

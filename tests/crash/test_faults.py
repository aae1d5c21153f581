"""The n-th call to the disk fails, for n = 1, 2, 3 ... until the scenario passes untouched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.faults import FaultyFiles
from tests.support.logs import LogBench

from pentalog.log.directories import StoreError
from pentalog.model.errors import BrokerError
from pentalog.model.types import Ack, Horizon, Partition

PLACES = [Partition("events", 0), Partition("events", 1), Partition("other", 0)]
N_MAX = 2000
TORTURE = "PENTALOG_TORTURE" in os.environ
KINDS = ("EIO", "ENOSPC", "short")
ROUNDS = 16


class Scenario:
    """Writes to three partitions through two lives, remembering what was acknowledged."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.acknowledged: dict[tuple[Partition, int], bytes] = {}
        self.refused = 0
        self.journal_bytes = 0

    def live(self, files: FaultyFiles, life: int) -> None:
        try:
            bench = LogBench(self.directory, files=files, open_now=False, journal_bytes=64 << 10)
            bench.store.open()
        except (StoreError, OSError):
            bench.crash()
            return
        try:
            self._write(bench, life)
            self.journal_bytes += bench.metrics.journal_bytes
            bench.store.close()
        except OSError:
            bench.crash()

    def _write(self, bench: LogBench, life: int) -> None:
        for at in PLACES:
            try:
                bench.partition(at, segment_bytes=2000, index_interval_bytes=200)
            except OSError:
                self.refused += 1
        for number in range(ROUNDS):
            for at in PLACES:
                self._send(bench, at, b"%d/%d/%s " % (life, number, str(at).encode()) * 8)
            if number % 8 == 7:
                bench.runtime.advance(6000)  # checkpoints, and the interval's syncs

    def _send(self, bench: LogBench, at: Partition, value: bytes) -> None:
        try:
            appended = bench.append(value, at=at)
        except BrokerError:
            self.refused += 1
            return
        later = bench.log.settle(appended, Ack.DURABLE)
        bench.runtime.step()
        assert later.ready, "an answer was forgotten"
        try:
            assert later.value == appended
        except BrokerError:
            self.refused += 1
            return
        key = (at, appended.base_offset)
        assert key not in self.acknowledged, "an acknowledged offset was given again"
        self.acknowledged[key] = value

    def check(self) -> None:
        bench = LogBench(self.directory)
        for at in bench.store.found():
            found = bench.values(at=at, horizon=Horizon.DURABLE)
            for (place, offset), value in self.acknowledged.items():
                if place == at:
                    assert found.get(offset) == value
        bench.crash()


@pytest.mark.parametrize("journal_first", [True, False], ids=["journal ready", "journal made"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_may_fail(
    tmp_path: Path, kind: str, journal_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if journal_first:
        monkeypatch.setattr("pentalog.log.flusher._JOURNAL_PAYS_AFTER", 1)
    # By default each call fails in one of the three ways; the simulator tries all of them.
    first, step = (1, 1) if TORTURE else (1 + KINDS.index(kind), len(KINDS))
    for n in range(first, N_MAX, step):
        scenario = Scenario(tmp_path / str(n))
        files = FaultyFiles(n, kind)
        scenario.live(files, 1)
        scenario.live(files, 2)
        try:
            scenario.check()
        except BaseException:
            print(f"call {n} ({files.failed}) failed with {kind}")
            raise
        if not files.failed:
            assert not scenario.refused
            assert len(scenario.acknowledged) == 2 * ROUNDS * len(PLACES)
            assert n > 200, "the scenario hardly touches the disk"
            assert scenario.journal_bytes > 0
            return
    pytest.fail(f"still failing after {N_MAX} calls")

"""Which aborted transactions a reader has to know of."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.logs import AT, LogBench

from pentalog.log.transactions import AbortedTransaction, AbortedTransactions
from pentalog.model import batch
from pentalog.model.types import Aborted


def history(chance: random.Random, length: int, producers: int) -> list[AbortedTransaction]:
    """Aborts of interleaved transactions, as a partition notes them."""
    open_starts: dict[int, int] = {}
    entries: list[AbortedTransaction] = []
    for offset in range(length):
        producer_id = chance.randrange(producers)
        if producer_id not in open_starts:
            open_starts[producer_id] = offset
        elif chance.random() < 0.5:
            start = open_starts.pop(producer_id)
            stable = min(open_starts.values(), default=offset + 1)
            if chance.random() < 0.8:  # the others commit
                entries.append(AbortedTransaction(producer_id, start, offset, stable))
    return entries


def noted(entries: list[AbortedTransaction]) -> AbortedTransactions:
    aborted = AbortedTransactions()
    for entry in entries:
        aborted.add(entry)
    return aborted


@pytest.mark.parametrize("seed", range(20))
def test_a_reader_gets_every_transaction_that_overlaps(seed: int) -> None:
    chance = random.Random(seed)
    entries = history(chance, 300, producers=1 + seed % 6)
    aborted = noted(entries)
    for _ in range(200):
        offset = chance.randrange(300)
        limit = chance.randrange(offset, 301)
        expected = [
            Aborted(entry.producer_id, entry.first_offset)
            for entry in sorted(entries, key=lambda entry: entry.first_offset)
            if entry.last_offset >= offset and entry.first_offset < limit
        ]
        assert aborted.between(offset, limit) == expected


class Counting(list[Any]):
    looks = 0

    def __getitem__(self, number: Any) -> Any:
        self.looks += len(range(*number.indices(len(self)))) if isinstance(number, slice) else 1
        return super().__getitem__(number)


def test_a_read_does_not_look_at_all_that_was_aborted_later() -> None:
    aborted = noted(history(random.Random(1), 20_000, producers=3))
    counting = aborted._entries = Counting(aborted._entries)
    assert aborted.between(0, 100)
    assert counting.looks < 200 < len(aborted)


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_an_abort_after_records_were_deleted_overwrites_no_other(
    tmp_path: Path, ending: str
) -> None:
    """Found by the simulator, seed 707368: aborted records were visible after a restart."""
    bench = LogBench(tmp_path / "data")
    partition = bench.partition(segment_bytes=1500)
    bench.settled(b"x" * 1400)
    for round_ in range(3):
        owner = {"producer_id": 7, "producer_epoch": 0}
        bench.settled(b"aborted", base_sequence=round_, transactional=True, **owner)
        marker = batch.build_marker(commit=False, timestamp_ms=1, **owner)
        bench.log.append(AT, memoryview(marker))
        if round_ == 1:
            # The first segment goes; the new start is in the second, between its two aborts.
            assert [one.base_offset for one in partition.segments] == [0, 1]
            partition.advance_start(3)
            assert [one.base_offset for one in partition.segments] == [1]
    expected = [Aborted(7, 3), Aborted(7, 5)]
    assert partition.aborted.between(3, 7) == expected
    if ending == "stop":
        bench.store.close()
    else:
        bench.crash()
    again = LogBench(tmp_path / "data")
    assert again.store.get(AT).aborted.between(3, 7) == expected

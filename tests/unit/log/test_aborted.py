"""Which aborted transactions a reader has to know of."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.logs import AT, LogBench

from pentalog.log import transactions
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
def test_a_reader_gets_every_transaction_that_overlaps(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_BLOCK", 8)
    chance = random.Random(seed)
    entries = history(chance, 300, producers=1 + seed % 6)
    aborted = noted(entries)
    start = 0
    for number in range(200):
        if number % 50 == 49:
            start = chance.randrange(start, 300)
            aborted.forget(start)
        offset = chance.randrange(start, 300)
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
    assert counting.looks < 1_000 < len(aborted)


def test_a_long_open_transaction_does_not_make_every_read_look_at_all_aborted_ones() -> None:
    """One client that held a transaction open made all readers pay for each that was aborted."""
    aborted = noted([AbortedTransaction(2, 10 * n, 10 * n + 9, 1) for n in range(1, 20_001)])
    aborted.between(0, 1)  # what is learnt once
    counting = aborted._entries = Counting(aborted._entries)
    assert aborted.between(5_000, 5_100) == [Aborted(2, 10 * n) for n in range(500, 510)]
    assert counting.looks < 2_000 < len(aborted)
    aborted.add(AbortedTransaction(1, 1, 200_019, 200_020))  # the long one is aborted in the end
    assert aborted.between(5_000, 5_010) == [Aborted(1, 1), Aborted(2, 5_000)]


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

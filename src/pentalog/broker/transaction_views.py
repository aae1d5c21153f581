"""Transactions, and the producers of a partition, as those see them who look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

from pentalog.broker.port import TransactionView, WriterView
from pentalog.broker.transaction import Transaction
from pentalog.log.producers import Producer
from pentalog.model.types import Identity


class Writers(Sequence[WriterView]):
    """Producers as they were listed; each is described when it is asked for."""

    def __init__(self, producers: Mapping[int, Producer]) -> None:
        self._producers = tuple(producers.items())

    def __len__(self) -> int:
        return len(self._producers)

    @overload
    def __getitem__(self, index: int) -> WriterView: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[WriterView]: ...
    def __getitem__(self, index: int | slice) -> WriterView | Sequence[WriterView]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        producer_id, producer = self._producers[index]
        return WriterView(
            Identity(producer_id, producer.epoch),
            producer.batches[-1].sequence_last if producer.batches else -1,
            producer.timestamp_ms,
            producer.transaction_start,
        )


def view_of(entry: Transaction) -> TransactionView:
    return TransactionView(
        entry.name,
        entry.identity,
        entry.phase.value,
        entry.timeout_ms,
        entry.started_ms,
        tuple(entry.partitions),
    )

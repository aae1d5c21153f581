"""What a partition remembers of its producers: sequences, epochs, open transactions.

Everything here can be had again from the log itself; the snapshot only saves the walk.

Snapshot file `<offset>.producers`, big-endian: the state before the batch at that offset.

    magic   4 bytes  "PLP1"
    crc     u32      CRC-32C of everything behind it
    count   u32
    then per producer: id i64, epoch i16, timestamp ms i64, start of its open transaction i64 (-1
    if none), number of batches u8, and per batch: first sequence i32, last sequence i32,
    base offset i64, last offset i64
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final, NamedTuple

from pentalog import kernels
from pentalog.kernels import Facts
from pentalog.model.errors import OutOfSequence, ProducerFenced, TransactionState

_HEAD: Final = struct.Struct(">4sII")
_PRODUCER: Final = struct.Struct(">qhqqB")
_BATCH: Final = struct.Struct(">iiqq")
_MAGIC: Final = b"PLP1"

REMEMBERED_BATCHES: Final = 5
"""As many as an idempotent producer may have in flight."""

SEQUENCE_MAX: Final = (1 << 31) - 1
_TRANSACTIONAL: Final = 0x10


class Written(NamedTuple):
    """A batch as its producer numbered it, and the offsets it got."""

    sequence_first: int
    sequence_last: int
    base_offset: int
    last_offset: int


class Producer:
    __slots__ = ("batches", "epoch", "timestamp_ms", "transaction_start")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.timestamp_ms = 0
        self.transaction_start = -1
        self.batches: deque[Written] = deque(maxlen=REMEMBERED_BATCHES)


class Producers:
    """All producers of one partition."""

    def __init__(self) -> None:
        self._by_id: dict[int, Producer] = {}
        self._open: dict[int, int] = {}
        """Where open transactions began, by producer, in the order they began."""
        self._ended: deque[tuple[int, int]] = deque()
        """(marker, start) of ended transactions whose marker may not be on the disk yet."""

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def open_transaction_start(self) -> int | None:
        """Offset of the oldest transaction that is neither committed nor aborted."""
        return next(iter(self._open.values())) if self._open else None

    def unstable_start(self, durable: int) -> int | None:
        """Offset of the oldest transaction whose end is not on the disk, if that ends there."""
        self.settled(durable)
        start = self.open_transaction_start
        if not self._ended:
            return start
        oldest = min(begun for _, begun in self._ended)
        return oldest if start is None else min(start, oldest)

    def settled(self, durable: int) -> None:
        """Markers before this offset are on the disk."""
        ended = self._ended
        while ended and ended[0][0] < durable:
            ended.popleft()

    def get(self, producer_id: int) -> Producer | None:
        return self._by_id.get(producer_id)

    def admit(self, facts: Facts, at: str) -> Written | None:
        """May these batches be appended?  Gives what is there already if they are a repetition."""
        producer = self._by_id.get(facts.producer_id)
        if producer is None:
            # Its records may have been deleted by retention: any sequence may start.
            return None
        if facts.producer_epoch < producer.epoch:
            raise ProducerFenced(
                f"producer {facts.producer_id} epoch {facts.producer_epoch} is fenced on {at}: "
                f"epoch {producer.epoch} has written; ask for a new producer id"
            )
        if producer.transaction_start >= 0 and not facts.attributes_any & _TRANSACTIONAL:
            raise TransactionState(
                f"producer {facts.producer_id} has a transaction open in {at} and sent a batch "
                f"outside of it: end the transaction first"
            )
        if facts.producer_epoch > producer.epoch or not producer.batches:
            expected = 0
        else:
            last = producer.batches[-1].sequence_last
            expected = 0 if last == SEQUENCE_MAX else last + 1
        if facts.sequence_first == expected:
            return None
        if facts.producer_epoch == producer.epoch:
            for written in producer.batches:
                if written[:2] == (facts.sequence_first, facts.sequence_last):
                    return written
        raise OutOfSequence(
            f"producer {facts.producer_id} sent sequence {facts.sequence_first} to {at}; "
            f"expected {expected}"
        )

    def wrote(
        self,
        producer_id: int,
        epoch: int,
        written: Written,
        *,
        timestamp_ms: int,
        transactional: bool,
    ) -> None:
        producer = self._by_id.get(producer_id)
        if producer is None:
            producer = self._by_id[producer_id] = Producer(epoch)
        elif epoch > producer.epoch:
            producer.epoch = epoch
            producer.batches.clear()
        producer.timestamp_ms = timestamp_ms
        producer.batches.append(written)
        if transactional and producer.transaction_start < 0:
            producer.transaction_start = written.base_offset
            self._open[producer_id] = written.base_offset

    def ended(self, producer_id: int, epoch: int, marker: int, *, timestamp_ms: int) -> int:
        """A commit or abort marker was written; returns where the transaction began, or -1."""
        producer = self._by_id.get(producer_id)
        if producer is None:
            producer = self._by_id[producer_id] = Producer(epoch)
        elif epoch > producer.epoch:
            producer.epoch = epoch
            producer.batches.clear()
        producer.timestamp_ms = timestamp_ms
        start, producer.transaction_start = producer.transaction_start, -1
        self._open.pop(producer_id, None)
        if start >= 0:
            self._ended.append((marker, start))
        return start

    def expire(self, before_ms: int) -> None:
        """Forget producers that have been silent since `before_ms` and have nothing open."""
        silent = [
            producer_id
            for producer_id, producer in self._by_id.items()
            if producer.timestamp_ms < before_ms and producer.transaction_start < 0
        ]
        for producer_id in silent:
            del self._by_id[producer_id]

    def all(self) -> dict[int, Producer]:
        return self._by_id

    def packed(self) -> bytes:
        body = bytearray(struct.pack(">I", len(self._by_id)))
        for producer_id, producer in self._by_id.items():
            body += _PRODUCER.pack(
                producer_id,
                producer.epoch,
                producer.timestamp_ms,
                producer.transaction_start,
                len(producer.batches),
            )
            for written in producer.batches:
                body += _BATCH.pack(*written)
        return _MAGIC + struct.pack(">I", kernels.crc32c(body)) + bytes(body)

    @classmethod
    def unpack(cls, data: bytes) -> Producers | None:
        """The snapshot, or None if it is damaged."""
        if len(data) < _HEAD.size:
            return None
        magic, crc, count = _HEAD.unpack_from(data)
        if magic != _MAGIC or kernels.crc32c(memoryview(data)[8:]) != crc:
            return None
        states = cls()
        position = _HEAD.size
        for _ in range(count):
            producer_id, epoch, timestamp, start, batches = _PRODUCER.unpack_from(data, position)
            position += _PRODUCER.size
            producer = states._by_id[producer_id] = Producer(epoch)
            producer.timestamp_ms = timestamp
            producer.transaction_start = start
            if start >= 0:
                states._open[producer_id] = start
            for _ in range(batches):
                producer.batches.append(Written(*_BATCH.unpack_from(data, position)))
                position += _BATCH.size
        states._open = dict(sorted(states._open.items(), key=lambda entry: entry[1]))
        return states

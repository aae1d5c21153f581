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
from collections import OrderedDict, deque
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
_PARTITION_SHARE: Final = 20
"""One partition remembers at most this part of all producers."""
_DROPPED_AT_ONCE: Final = 64
"""By the partition that remembers most, when there are too many of all partitions together."""
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
        self.batches: list[Written] = []
        """The last ones, oldest first."""


class ProducerRoom:
    """How many producers all partitions together remember.

    A client chooses the ids that it writes with, so their number must not be up to it.  Where there
    are too many, those that have been silent for longest are forgotten, in the partition that has
    most: what others write elsewhere is not affected.  A producer that is forgotten can go on; only
    a repetition of what it wrote before is not recognized any more.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self.partition_max = max(1, total // _PARTITION_SHARE)
        self._count = 0
        self._partitions: dict[Producers, None] = {}

    def add(self, partition: Producers, count: int) -> None:
        """Count more producers of a partition, and make room for them."""
        self._count += count
        self._partitions[partition] = None
        if len(partition) > self.partition_max:
            partition.drop(len(partition) - self.partition_max)
        if self._count > self._total:
            max(self._partitions, key=len).drop(_DROPPED_AT_ONCE)

    def release(self, partition: Producers, count: int) -> None:
        """Count fewer producers of a partition."""
        self._count -= count
        if not len(partition):
            self._partitions.pop(partition, None)


class Producers:
    """All producers of one partition."""

    def __init__(self, room: ProducerRoom | None = None) -> None:
        self._room = room
        self._by_id: OrderedDict[int, Producer] = OrderedDict()
        """The one that wrote last is last."""
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
        producer = self._known(producer_id, epoch)
        producer.timestamp_ms = timestamp_ms
        producer.batches.append(written)
        if len(producer.batches) > REMEMBERED_BATCHES:
            del producer.batches[0]
        if transactional and producer.transaction_start < 0:
            producer.transaction_start = written.base_offset
            self._open[producer_id] = written.base_offset

    def ended(self, producer_id: int, epoch: int, marker: int, *, timestamp_ms: int) -> int:
        """A commit or abort marker was written; returns where the transaction began, or -1."""
        producer = self._known(producer_id, epoch)
        producer.timestamp_ms = timestamp_ms
        start, producer.transaction_start = producer.transaction_start, -1
        self._open.pop(producer_id, None)
        if start >= 0:
            self._ended.append((marker, start))
        return start

    def _known(self, producer_id: int, epoch: int) -> Producer:
        """Return a producer that has just written, as of this epoch."""
        producer = self._by_id.get(producer_id)
        if producer is None:
            producer = self._by_id[producer_id] = Producer(epoch)
            if self._room is not None:
                self._room.add(self, 1)
            return producer
        self._by_id.move_to_end(producer_id)
        if epoch > producer.epoch:
            producer.epoch = epoch
            producer.batches.clear()
        return producer

    def drop(self, count: int) -> None:
        """Forget the producers that have been silent for longest, unless they have something open.

        It looks at a few more than that, so that thousands of open transactions cost little.
        """
        dropped = 0
        # The newest is about to write: it is not looked at, and stays last for the next call.
        newest = next(reversed(self._by_id))
        for _ in range(min(count + _DROPPED_AT_ONCE, len(self._by_id) - 1)):
            producer_id = next(iter(self._by_id))
            if self._by_id[producer_id].transaction_start >= 0:
                self._by_id.move_to_end(producer_id)
                continue
            del self._by_id[producer_id]
            dropped += 1
            if dropped == count:
                break
        self._by_id.move_to_end(newest)
        self._release(dropped)

    def clear(self) -> None:
        """Forget all: the partition is deleted."""
        count = len(self._by_id)
        self._by_id.clear()
        self._open.clear()
        self._release(count)

    def _release(self, count: int) -> None:
        if self._room is not None and count:
            self._room.release(self, count)

    def expire(self, before_ms: int) -> None:
        """Forget producers that have been silent since `before_ms` and have nothing open."""
        silent = [
            producer_id
            for producer_id, producer in self._by_id.items()
            if producer.timestamp_ms < before_ms and producer.transaction_start < 0
        ]
        for producer_id in silent:
            del self._by_id[producer_id]
        self._release(len(silent))

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
    def unpack(cls, data: bytes, room: ProducerRoom | None = None) -> Producers | None:
        """The snapshot, or None if it is damaged."""
        if len(data) < _HEAD.size:
            return None
        magic, crc, count = _HEAD.unpack_from(data)
        if magic != _MAGIC or kernels.crc32c(memoryview(data)[8:]) != crc:
            return None
        states = cls(room)
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
        if room is not None:
            room.add(states, len(states))
        return states

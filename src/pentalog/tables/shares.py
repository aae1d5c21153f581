"""What each task of a write does: its rows, in a transaction that is left ready to commit.

A transaction belongs to one producer, so tasks that write at the same time have one each: a
*share* of the batch.  The commit is the driver's (`settlement.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from pentalog.clients.kafka import Cluster
from pentalog.clients.kafka.connection import ClientOptions
from pentalog.clients.kafka.errors import KafkaFailed, Refused
from pentalog.clients.kafka.offsets import GroupOffset, committed
from pentalog.clients.kafka.transactions import ProducerId, TransactionalProducer
from pentalog.kernels import Producing
from pentalog.model.batch import TRANSACTIONAL
from pentalog.model.types import Partition
from pentalog.tables.encoder import Encoder

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX: Final = "pentalog.writer."


class WriteRefused(Exception):
    """A batch that cannot be written without risking a loss or a double."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where rows go."""

    servers: str
    topic: str
    timeout_ms: int
    """How long a transaction may stay open: longer than tasks run and drivers take to restart."""
    client: ClientOptions


class Batch(NamedTuple):
    """One batch of one query."""

    writer: str
    number: int
    replayable: bool
    """Whether somebody may ask for it again, as Spark does after a crash."""


class Share(NamedTuple):
    """A task's transaction, ready to commit."""

    task: int
    producer_id: int
    epoch: int
    rows: int
    digest: int
    home: tuple[str, int]
    """A partition it wrote to."""

    @property
    def identity(self) -> ProducerId:
        return ProducerId(self.producer_id, self.epoch)


class Outcome(NamedTuple):
    """What a task reports to the driver."""

    share: Share | None
    """None if it wrote no rows."""
    listed: bool
    """Whether the batch counted as written when the task ran."""


def name_of(writer: str, index: int | None = None) -> str:
    """The transactional id, and the group, of a writer or of one of its shares."""
    return f"{PREFIX}{writer}" if index is None else f"{PREFIX}{writer}.{index}"


def write_share(
    target: Target, batch: Batch, index: int, rows: Iterable[pa.RecordBatch], lost: Share | None
) -> Outcome:
    """Write a task's rows and leave the transaction open; nothing if a share is committed already.

    `lost` is this share of a former attempt that is known to be gone: the rows must be the same.
    """
    some = _not_empty(rows)
    first = next(some, None)
    if first is None:
        if lost is not None:
            raise changed_rows(batch, index)
        return Outcome(None, listed=False)
    with Cluster(target.servers, target.client) as cluster:
        name = name_of(batch.writer, index)
        producer = TransactionalProducer(cluster, name, timeout_ms=target.timeout_ms)
        # The list may have been recorded, and this share committed, since the task looked for
        # them.  Only now is the answer final: taking the id over ended the former transaction.
        if batch.replayable and is_recorded(cluster, batch, index):
            return Outcome(None, listed=True)
        try:
            share = _fill(cluster, producer, target, index, chain([first], some))
            if lost is not None and (share.rows, share.digest) != (lost.rows, lost.digest):
                raise changed_rows(batch, index)
            if batch.replayable:
                home = Partition(*share.home)
                producer.commit_offsets(name, {home: GroupOffset(batch.number + 1)})
        except BaseException:
            _abort(producer)
            raise
    return Outcome(share, listed=lost is not None)


def _fill(
    cluster: Cluster,
    producer: TransactionalProducer,
    target: Target,
    index: int,
    rows: Iterator[pa.RecordBatch],
) -> Share:
    def partitions_of(topic: str) -> int:
        return len(cluster.topic(topic, create=True).partitions)

    identity = producer.producer
    encoder = Encoder(
        Producing(identity.producer_id, identity.epoch, TRANSACTIONAL),
        partitions_of,
        topic=target.topic,
        task=index,
    )
    home: Partition | None = None
    for some in rows:
        encoded = list(encoder.encode(some, time.time_ns() // 1_000_000))
        producer.add_partitions({one.at for one in encoded})
        for one in encoded:
            data = bytes(memoryview(one.data)[one.start : one.end])
            cluster.produce(one.at, data, transactional_id=producer.name)
            home = home or one.at
    assert home is not None
    return Share(
        index,
        identity.producer_id,
        identity.epoch,
        encoder.rows,
        encoder.digest,
        (home.topic, home.index),
    )


def commit_share(cluster: Cluster, batch: Batch, share: Share) -> bool:
    """Commit a share, again if need be; False if its transaction is gone, and with it its rows."""
    name = name_of(batch.writer, share.task)
    try:
        TransactionalProducer(cluster, name, share.identity).commit()
    except Refused as refused:
        if refused.retriable:
            raise
        # Refused too when another life of this share has begun since; what counts is its record.
        # That life's transaction may stay open for long, and must not be waited for.
        return batch.replayable and is_recorded(cluster, batch, share.task, stable=False)
    return True


def abort_share(cluster: Cluster, batch: Batch, share: Share) -> None:
    name = name_of(batch.writer, share.task)
    _abort(TransactionalProducer(cluster, name, share.identity))


def is_recorded(cluster: Cluster, batch: Batch, index: int, *, stable: bool = True) -> bool:
    """Whether a share of this batch was committed: its transaction said so to its group."""
    known = committed(cluster, name_of(batch.writer, index), stable=stable)
    return any(one.offset > batch.number for one in known.values())


def _abort(producer: TransactionalProducer) -> None:
    """Best effort: its timeout, or the next life of the share, aborts what stays open."""
    try:
        producer.abort()
    except KafkaFailed:
        return


def _not_empty(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (one for one in rows if one.num_rows)


def changed_rows(batch: Batch, index: int) -> WriteRefused:
    return WriteRefused(
        f"batch {batch.number} of {batch.writer} was committed in part, and the transaction of "
        f"task {index} timed out before the rest was; its rows are not the same this time, so "
        "writing them could double or lose some. Compare the topic with the query's input, then "
        "go on with a new checkpoint"
    )

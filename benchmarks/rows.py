"""The rows of the comparison: what is sent, how often, and what an acknowledgement means.

Rows last for a time, not for a number of records: a broker that is much faster than the other
would else be measured for moments only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Durability(Enum):
    """What the broker has done with a record when it acknowledges it, on both sides."""

    PAGE_CACHE = "page cache"
    FSYNC = "fsync"


class Load(Enum):
    PRODUCE = "produce"
    CONSUME = "consume"
    LATENCY = "latency"
    PARTITIONS = "partitions"
    TINY = "tiny"
    GROUP = "group"
    TRANSACTIONS = "transactions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    title: str
    load: Load
    size: int
    """Bytes per record."""
    seconds: float = 4.0
    durability: Durability = Durability.PAGE_CACHE
    settings: tuple[str, ...] = ()
    """Settings of librdkafka."""
    topics: int = 1
    partitions: int = 1
    count: int = 0
    """Records to consume in one pass."""
    window: int = 0
    """Requests in flight."""
    commit_every: int = 0
    """Records between two commits of offsets or of transactions."""

    def scaled(self, share: float) -> Row:
        """The same row with a share of the work."""
        return replace(self, seconds=self.seconds * share, count=round(self.count * share))


_SMALL = ("acks=1", "batch.num.messages=10", "linger.ms=0")
_ONE_IN_FLIGHT = ("acks=all", "linger.ms=0")
_IDEMPOTENT = ("acks=all", "enable.idempotence=true")
# A process that ends without a word must not keep its membership for long.
# Without the last of these librdkafka rests a second whenever it has fetched enough ahead, which
# is then nearly all that is measured, on either broker.
_MEMBER = (
    "auto.offset.reset=earliest",
    "enable.auto.commit=false",
    "session.timeout.ms=6000",
    "fetch.queue.backoff.ms=1",
)

ROWS: tuple[Row, ...] = (
    Row(
        name="produce-100-acks1",
        title="produce 100 B, acks=1",
        load=Load.PRODUCE,
        size=100,
        settings=("acks=1",),
    ),
    Row(
        name="produce-100-all",
        title="produce 100 B, acks=all",
        load=Load.PRODUCE,
        size=100,
        settings=("acks=all",),
    ),
    Row(
        name="produce-1k-acks1",
        title="produce 1 KB, acks=1",
        load=Load.PRODUCE,
        size=1000,
        settings=("acks=1",),
    ),
    Row(
        name="produce-1k-all",
        title="produce 1 KB, acks=all",
        load=Load.PRODUCE,
        size=1000,
        settings=("acks=all",),
    ),
    Row(
        name="produce-100-lz4",
        title="produce 100 B, lz4, acks=1",
        load=Load.PRODUCE,
        size=100,
        settings=("acks=1", "compression.type=lz4"),
    ),
    Row(
        name="produce-100-zstd",
        title="produce 100 B, zstd, acks=1",
        load=Load.PRODUCE,
        size=100,
        settings=("acks=1", "compression.type=zstd"),
    ),
    Row(
        name="produce-1k-lz4",
        title="produce 1 KB, lz4, acks=1",
        load=Load.PRODUCE,
        size=1000,
        settings=("acks=1", "compression.type=lz4"),
    ),
    Row(
        name="produce-1k-zstd",
        title="produce 1 KB, zstd, acks=1",
        load=Load.PRODUCE,
        size=1000,
        settings=("acks=1", "compression.type=zstd"),
    ),
    Row(
        name="produce-100-4-topics",
        title="produce 100 B to 4 topics, acks=1",
        load=Load.PRODUCE,
        size=100,
        settings=("acks=1",),
        topics=4,
    ),
    Row(
        name="consume-100",
        title="consume 100 B",
        load=Load.CONSUME,
        size=100,
        count=3_000_000,
    ),
    Row(
        name="consume-1k",
        title="consume 1 KB",
        load=Load.CONSUME,
        size=1000,
        count=1_000_000,
    ),
    Row(
        name="small-100",
        title="produce 100 B, 10 per batch, linger 0",
        load=Load.PRODUCE,
        size=100,
        settings=_SMALL,
    ),
    Row(
        name="small-1k",
        title="produce 1 KB, 10 per batch, linger 0",
        load=Load.PRODUCE,
        size=1000,
        settings=_SMALL,
    ),
    Row(
        name="latency-100",
        title="one in flight, 100 B, acks=all",
        load=Load.LATENCY,
        size=100,
        settings=_ONE_IN_FLIGHT,
    ),
    Row(
        name="latency-1k",
        title="one in flight, 1 KB, acks=all",
        load=Load.LATENCY,
        size=1000,
        settings=_ONE_IN_FLIGHT,
    ),
    Row(
        name="tiny",
        title="one 100 B record per request, 1000 in flight, acks=1",
        load=Load.TINY,
        size=100,
        window=1000,
    ),
    Row(
        name="group-consume",
        title="one group member, 100 B, a commit awaited after every 1,000 records",
        load=Load.GROUP,
        size=100,
        settings=_MEMBER,
        count=1_000_000,
        commit_every=1_000,
    ),
    Row(
        name="idempotent-100",
        title="idempotent producer, 100 B, acks=all",
        load=Load.PRODUCE,
        size=100,
        settings=_IDEMPOTENT,
    ),
    Row(
        name="idempotent-1k",
        title="idempotent producer, 1 KB, acks=all",
        load=Load.PRODUCE,
        size=1000,
        settings=_IDEMPOTENT,
    ),
    Row(
        name="transactions-100",
        title="one transactional producer, 100 records of 100 B per transaction",
        load=Load.TRANSACTIONS,
        size=100,
        commit_every=100,
    ),
    Row(
        name="latency-100-fsync",
        title="one in flight, 100 B, acks=all",
        load=Load.LATENCY,
        size=100,
        durability=Durability.FSYNC,
        settings=_ONE_IN_FLIGHT,
    ),
    Row(
        name="latency-1k-fsync",
        title="one in flight, 1 KB, acks=all",
        load=Load.LATENCY,
        size=1000,
        durability=Durability.FSYNC,
        settings=_ONE_IN_FLIGHT,
    ),
    Row(
        name="partitions-64-fsync",
        title="64 partitions, one 100 B batch in flight each, acks=all",
        load=Load.PARTITIONS,
        size=100,
        durability=Durability.FSYNC,
        partitions=64,
    ),
    Row(
        name="transactions-100-fsync",
        title="one transactional producer, 100 records of 100 B per transaction",
        load=Load.TRANSACTIONS,
        size=100,
        durability=Durability.FSYNC,
        commit_every=100,
    ),
)

WARM_UP: tuple[Row, ...] = (
    Row(
        name="small",
        title="small batches",
        load=Load.PRODUCE,
        size=100,
        seconds=15.0,
        settings=_SMALL,
    ),
    Row(
        name="latency",
        title="one in flight",
        load=Load.LATENCY,
        size=100,
        seconds=5.0,
        settings=_ONE_IN_FLIGHT,
    ),
    Row(
        name="partitions",
        title="64 connections",
        load=Load.PARTITIONS,
        size=100,
        partitions=64,
        seconds=10.0,
    ),
    Row(
        name="transactions",
        title="transactions",
        load=Load.TRANSACTIONS,
        size=100,
        seconds=5.0,
        commit_every=10,
    ),
)
"""Thrown away; both brokers get it on every process before the first round."""

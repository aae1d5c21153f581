"""The contract between protocols and the broker; the only broker module protocols import.

A plain `def` never waits.  What another engine would have to wait for returns `Later`, which
the local engine fills before it returns wherever it can.  Every call may raise a `BrokerError`;
nothing else ever comes out of a correct call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from pentalog.kernels import Facts
from pentalog.model.later import Later
from pentalog.model.settings import LogSettings
from pentalog.model.types import (
    Ack,
    Appended,
    Edge,
    Horizon,
    Identity,
    Marks,
    Offset,
    Partition,
    Slice,
)


class Log(Protocol):
    """Batches in, batches out."""

    def append(self, at: Partition, batches: memoryview, facts: Facts | None = None) -> Appended:
        """Take whole batches in the log's own format, all or none; ordered, never waits.

        `batches` is writable and is patched in place (offset and epoch lie outside the
        checksum); it is not needed any more when this returns.  `facts` is what
        `kernels.check_batches` said of exactly these bytes, if the caller asked already.
        Producer id, epoch and sequence are in the batches: a repeated batch is answered with
        the offsets it got the first time.
        """

    def settle(self, appended: Appended, ack: Ack) -> Later[Appended]:
        """Ready as soon as the records are as safe as `ack` demands."""

    def read(
        self,
        at: Partition,
        offset: Offset,
        *,
        bytes_max: int,
        horizon: Horizon,
        whole_first: bool = True,
    ) -> Later[Slice]:
        """Whole batches from the one that contains `offset`, up to `bytes_max` and the horizon.

        With `whole_first` the first batch comes whole even if it is larger than `bytes_max`.
        Never waits for data: an empty slice if there is none yet.  Not ready at once only when
        the bytes must come from a slow disk.
        """

    def wait(
        self,
        positions: Mapping[Partition, Offset],
        *,
        bytes_min: int,
        horizon: Horizon,
        timeout_ms: int,
    ) -> Waiting:
        """Ready (True) once `bytes_min` lie behind the positions, (False) when time is up."""

    def marks(self, at: Partition) -> Marks: ...

    def locate(self, at: Partition, when: Edge | int) -> tuple[Offset, int]:
        """Offset and timestamp of an edge, or of the first record at or after `when` ms.

        (-1, -1) if there is no such record.
        """

    def size_bytes(self, at: Partition) -> int:
        """Bytes of the partition's segments on disk."""


class Waiting(Later[bool]):
    """A wait that can be given up."""

    __slots__ = ()

    def cancel(self) -> None:
        """Forget it: nothing will be filled any more."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic as somebody wishes it."""

    name: str
    partitions: int | None = None
    """None: the broker's default."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """By Kafka's names (`retention.ms`); only those that differ from the defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as it is."""

    name: str
    topic_id: UUID
    partitions: int
    overrides: Mapping[str, str]
    settings: LogSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One topic setting, for those who list them."""

    name: str
    value: str
    default: str
    overridden: bool
    kind: str
    """boolean, string, int, long, double or list."""
    documentation: str


class Topics(Protocol):
    version: int
    """Grows with every change of any topic, so answers built from topics can be kept."""

    def create(self, spec: TopicSpec, *, dry_run: bool = False) -> Topic: ...
    def delete(self, name: str) -> None: ...
    def get(self, name: str) -> Topic: ...
    def by_id(self, topic_id: UUID) -> Topic: ...
    def all(self) -> Sequence[Topic]: ...
    def grow(self, name: str, partitions: int, *, dry_run: bool = False) -> None: ...
    def configure(
        self,
        name: str,
        changes: Mapping[str, str | None],
        *,
        replace: bool = False,
        dry_run: bool = False,
    ) -> None:
        """Change settings (None: back to the default); with `replace`, drop all others first."""

    def settings(self, name: str) -> Sequence[Setting]: ...
    def defaults(self) -> Sequence[Setting]:
        """Every setting, as a topic without settings of its own has it."""

    def settle(self) -> Later[None]:
        """Ready as soon as every change made so far is on the disk."""

    def trim(self, at: Partition, before: Offset) -> Offset:
        """Give up everything before an offset; returns the new start."""


class Producers(Protocol):
    def identify(self) -> Later[Identity]:
        """A producer id nobody had before, in this life of the broker or any other."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Broker:
    """One broker: everything a protocol may ask for."""

    cluster_id: str
    """22 characters, made once per data directory."""
    log: Log
    topics: Topics
    producers: Producers

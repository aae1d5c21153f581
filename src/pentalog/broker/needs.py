"""What parts of the broker need of each other, no more than that.

So that the same code serves a broker on its own files and gateways in front of a cluster, where
others stand for the state file, the log and the topics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from pentalog.broker.port import Opened, Topic, TopicSpec
from pentalog.broker.state import Row, Value
from pentalog.kernels import Facts
from pentalog.model.later import Later
from pentalog.model.settings import LogSettings
from pentalog.model.types import Ack, Appended, Horizon, Marks, Offset, Partition


class Rows(Protocol):
    """Rows that are read once, and changed then; `State` says how."""

    def rows(self, sql: str, *values: Value) -> list[Row]: ...

    def check(self) -> None: ...

    def write(self, sql: str, *values: Value) -> None: ...

    def settle(self) -> Later[None]: ...


class RowsToLookUp(Rows, Protocol):
    """Rows that are also read later."""

    def look_up(self, sql: str, *values: Value) -> Later[list[Row]]: ...


class Readable(Protocol):
    """As much of a `port.Log` as is read from."""

    def marks(self, at: Partition) -> Marks: ...

    def open(
        self, at: Partition, offset: Offset, *, bytes_max: int, horizon: Horizon
    ) -> Later[Opened]: ...


class Appendable(Readable, Protocol):
    """That, and as much as is written to."""

    def append(
        self,
        at: Partition,
        batches: memoryview,
        facts: Facts | None = None,
        *,
        relayed: bool = False,
    ) -> Appended: ...

    def settle(self, appended: Appended, ack: Ack) -> Later[Appended]: ...

    def ends(self, partitions: Collection[Partition]) -> Later[Mapping[Partition, Offset]]: ...


class Admitting(Appendable, Protocol):
    """That, for batches that may have been opened before."""

    def append(
        self,
        at: Partition,
        batches: memoryview,
        facts: Facts | None = None,
        *,
        opened: LogSettings | None = None,
        relayed: bool = False,
    ) -> Appended: ...


class NamedTopics(Protocol):
    """As much of `port.Topics` as whoever knows topics by their names needs."""

    @property
    def version(self) -> int: ...

    def get(self, name: str) -> Topic: ...

    def create(self, spec: TopicSpec) -> Topic: ...

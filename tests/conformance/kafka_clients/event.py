"""What the clients exchange in tests: one event, and what each client must be able to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT_S = 180.0


class Event(NamedTuple):
    """One record as a writer hands it over; timestamp None leaves it to the client's clock."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


class Read(NamedTuple):
    """One record as a reader got it."""

    offset: int
    event: Event


class Client(Protocol):
    name: str

    def missing(self) -> str:
        """Why this client cannot run here; empty when it can."""
        ...

    def expressible(self, event: Event) -> Event | None:
        """The event as this client can write it, or None when it cannot."""
        ...

    def create_topic(
        self, address: str, topic: str, *, partitions: int, settings: Mapping[str, str]
    ) -> None: ...

    def write(
        self, address: str, topic: str, events: Sequence[Event], *, codec: str, partition: int
    ) -> None:
        """Write `events` in order and return when all are acknowledged by acks=all."""
        ...

    def read(self, address: str, topic: str, *, partition: int, count: int) -> list[Read]:
        """The first `count` records, from the earliest on."""
        ...

    def earliest(self, address: str, topic: str, partition: int) -> int: ...

    def latest(self, address: str, topic: str, partition: int) -> int: ...

    def at_time(self, address: str, topic: str, partition: int, timestamp_ms: int) -> int:
        """Offset of the first record at or after the time; -1 when there is none."""
        ...

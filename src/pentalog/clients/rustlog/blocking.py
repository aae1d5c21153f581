"""The client for programs that wait: one connection, one request at a time."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from pentalog.clients.patience import CircuitBreaker, Patience
from pentalog.clients.reconnection import ConnectionLost, Reconnecting
from pentalog.clients.rustlog.calls import (
    LENGTH,
    Call,
    Fetched,
    FetchedRecord,
    PartitionSummary,
    Produced,
    TopicSummary,
    calls_of,
    frame_size,
)

T = TypeVar("T")

_READ_BYTES: Final = 1 << 20


class RustLogClient(Reconnecting):
    """Connects when it must, and again when the connection was lost.

    A request that failed for the connection or the broker is sent again after growing waits.  A
    Produce whose answer was lost may thus be written twice: records arrive at least once.  Give
    `Patience(retries_max=0)` where that is worse than an error.  Not for use by several threads.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:9192",
        *,
        dialect: str = "binary",
        timeout_s: float = 30.0,
        patience: Patience | None = None,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        super().__init__(address, timeout_s, patience, breaker)
        self._calls = calls_of(dialect)

    def ping(self) -> None:
        self._ask(self._calls.ping())

    def produce(self, topic: str, partition: int, records: Sequence[bytes]) -> Produced:
        """Append all records or none; returns when they are safe."""
        return self._ask(self._calls.produce(topic, partition, records))

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        bytes_max: int = 1 << 20,
        group: str = "",
    ) -> Fetched:
        """What is there from `offset` on; nothing if there is nothing yet.

        In the binary dialect, what `group` has committed replaces `offset`.
        """
        return self._ask(self._calls.fetch(topic, partition, offset, bytes_max, group))

    def records(
        self, topic: str, partition: int, offset: int = 0, *, bytes_max: int = 1 << 20
    ) -> Iterator[FetchedRecord]:
        """Every record from `offset` to the end there is now."""
        end = self.describe_partition(topic, partition).high_watermark
        while offset < end:
            found = self.fetch(topic, partition, offset, bytes_max=bytes_max)
            yield from found.records
            if found.next_offset == offset:
                return
            offset = found.next_offset

    def commit(self, group: str, topic: str, partition: int, offset: int) -> bool:
        """Remember the next offset to process; False if there is no such partition."""
        return self._ask(self._calls.commit(group, topic, partition, offset))

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        return self._ask(self._calls.committed(group, topic, partition))

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        self._ask(self._calls.create_topic(topic, partitions))

    def topics(self) -> list[TopicSummary]:
        return self._ask(self._calls.topics())

    def describe_topic(self, topic: str) -> list[PartitionSummary]:
        return self._ask(self._calls.describe_topic(topic))

    def describe_partition(self, topic: str, partition: int) -> PartitionSummary:
        return self._ask(self._calls.describe_partition(topic, partition))

    def metrics(self) -> str:
        """Prometheus text."""
        return self._ask(self._calls.metrics())

    def _ask(self, call: Call[T]) -> T:
        return self._persist(lambda: call.read(self._exchange(call.frame)))

    def _exchange(self, frame: bytes) -> memoryview:
        try:
            connection = self._socket or self._connect()
            connection.sendall(frame)
            size = frame_size(bytes(self._receive(connection, LENGTH.size)))
            return self._receive(connection, size)
        except OSError as error:
            raise self._lost(error) from error

    def _receive(self, connection: socket.socket, size: int) -> memoryview:
        view = memoryview(bytearray(size))
        got = 0
        while got < size:
            count = connection.recv_into(view[got : got + _READ_BYTES])
            if count == 0:
                raise ConnectionLost("the broker closed the connection in the middle of a reply")
            got += count
        return view

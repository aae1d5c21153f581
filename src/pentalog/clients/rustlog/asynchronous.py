"""The client for asyncio: one connection, one request at a time, callers wait in line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from pentalog.clients.patience import CircuitBreaker, Patience
from pentalog.clients.reconnection import AsyncReconnecting
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


class AsyncRustLogClient(AsyncReconnecting):
    """As `RustLogClient`, for one event loop; may be used by several tasks."""

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

    async def ping(self) -> None:
        await self._ask(self._calls.ping())

    async def produce(self, topic: str, partition: int, records: Sequence[bytes]) -> Produced:
        """Append all records or none; returns when they are safe."""
        return await self._ask(self._calls.produce(topic, partition, records))

    async def fetch(
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
        return await self._ask(self._calls.fetch(topic, partition, offset, bytes_max, group))

    async def records(
        self, topic: str, partition: int, offset: int = 0, *, bytes_max: int = 1 << 20
    ) -> AsyncIterator[FetchedRecord]:
        """Every record from `offset` to the end there is now."""
        end = (await self.describe_partition(topic, partition)).high_watermark
        while offset < end:
            found = await self.fetch(topic, partition, offset, bytes_max=bytes_max)
            for record in found.records:
                yield record
            if found.next_offset == offset:
                return
            offset = found.next_offset

    async def commit(self, group: str, topic: str, partition: int, offset: int) -> bool:
        """Remember the next offset to process; False if there is no such partition."""
        return await self._ask(self._calls.commit(group, topic, partition, offset))

    async def committed(self, group: str, topic: str, partition: int) -> int | None:
        return await self._ask(self._calls.committed(group, topic, partition))

    async def create_topic(self, topic: str, partitions: int = 1) -> None:
        await self._ask(self._calls.create_topic(topic, partitions))

    async def topics(self) -> list[TopicSummary]:
        return await self._ask(self._calls.topics())

    async def describe_topic(self, topic: str) -> list[PartitionSummary]:
        return await self._ask(self._calls.describe_topic(topic))

    async def describe_partition(self, topic: str, partition: int) -> PartitionSummary:
        return await self._ask(self._calls.describe_partition(topic, partition))

    async def metrics(self) -> str:
        """Prometheus text."""
        return await self._ask(self._calls.metrics())

    async def _ask(self, call: Call[T]) -> T:
        async def attempt() -> T:
            return call.read(memoryview(await self._exchange(call.frame)))

        return await self._persist(attempt)

    async def _exchange(self, frame: bytes) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._streams is None:
                    self._streams = await asyncio.open_connection(*self._address)
                reader, writer = self._streams
                writer.write(frame)
                await writer.drain()
                size = frame_size(await reader.readexactly(LENGTH.size))
                return await reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            said = "the broker closed the connection in the middle of a reply"
            raise self._lost(EOFError(said)) from error
        except (OSError, TimeoutError) as error:
            raise self._lost(error) from error
        except asyncio.CancelledError:
            self._abandon()
            raise

"""The client for asyncio: one connection, one request at a time, callers wait in line."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import TypeVar

from pentalog.clients.patience import CircuitBreaker, Patience
from pentalog.clients.rustlog.calls import (
    LENGTH,
    Call,
    ConnectionLost,
    Fetched,
    FetchedRecord,
    PartitionSummary,
    Produced,
    ServerError,
    TopicSummary,
    calls_of,
    frame_size,
    parse_address,
)

T = TypeVar("T")


class AsyncRustLogClient:
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
        self._address = parse_address(address)
        self._calls = calls_of(dialect)
        self._timeout_s = timeout_s
        self._patience = patience or Patience()
        self._breaker = breaker or CircuitBreaker()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()

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

    async def close(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
            with contextlib.suppress(OSError):
                await streams[1].wait_closed()

    async def __aenter__(self) -> AsyncRustLogClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _ask(self, call: Call[T]) -> T:
        loop = asyncio.get_running_loop()
        delays_ms = self._patience.delays_ms()
        while True:
            self._breaker.check(loop.time())
            try:
                async with self._turn:
                    answer = call.read(memoryview(await self._exchange(call.frame)))
            except (ConnectionLost, ServerError) as trouble:
                if isinstance(trouble, ConnectionLost):
                    await self.close()
                self._breaker.failed(loop.time())
                delay_ms = next(delays_ms, None)
                if delay_ms is None:
                    raise
                await asyncio.sleep(delay_ms / 1000)
            else:
                self._breaker.succeeded()
                return answer

    async def _exchange(self, frame: bytes) -> bytes:
        host, port = self._address
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._streams is None:
                    self._streams = await asyncio.open_connection(host, port)
                reader, writer = self._streams
                writer.write(frame)
                await writer.drain()
                size = frame_size(await reader.readexactly(LENGTH.size))
                return await reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            said = "the broker closed the connection in the middle of a reply"
            raise ConnectionLost(f"{host}:{port}: {said}") from error
        except (OSError, TimeoutError) as error:
            raise ConnectionLost(f"{host}:{port}: {error or 'timed out'}") from error
        except asyncio.CancelledError:
            # The answer may still come: it must not be taken for that of the next request.
            streams, self._streams = self._streams, None
            if streams is not None:
                streams[1].close()
            raise

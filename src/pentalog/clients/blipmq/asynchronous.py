"""The client for asyncio: one connection, one exchange at a time, callers wait in line."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TypeVar

from pentalog.clients.blipmq import exchanges
from pentalog.clients.blipmq.exchanges import (
    READ_BYTES,
    Answers,
    ConnectionLost,
    Delivery,
    Exchange,
    Frame,
    Reader,
    ServerError,
)
from pentalog.clients.patience import CircuitBreaker, Patience

T = TypeVar("T")


class AsyncBlipmqClient:
    """As `BlipmqClient`, for one event loop; may be used by several tasks."""

    def __init__(
        self,
        address: str = "127.0.0.1:5555",
        *,
        key: str = "dev-key",
        timeout_s: float = 30.0,
        patience: Patience | None = None,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        self._address = exchanges.parse_address(address)
        self._key = key
        self._timeout_s = timeout_s
        self._patience = patience or Patience()
        self._breaker = breaker or CircuitBreaker()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._reader = Reader()
        self._waiting: list[Frame] = []
        self._next_id = 1
        self._turn = asyncio.Lock()

    async def ping(self) -> None:
        """Returns when the broker has answered."""
        await self._ask(exchanges.pinging())

    async def publish(self, topic: str, *messages: bytes, qos: int = 1) -> None:
        """Returns when the broker has them all; with quality 1, when they are on its disk."""
        for exchange in exchanges.publishing(topic, messages, qos):
            await self._ask(exchange)

    async def subscribe(self, topic: str, *, qos: int = 1) -> int:
        """A new subscription that begins now; with quality 1 deliveries are acknowledged."""
        return await self._ask(exchanges.subscribing(topic, qos))

    async def poll(self, subscription: int, count: int = 1) -> list[Delivery]:
        """Up to `count` deliveries (1000 at most); none if there is nothing now."""
        return await self._ask(exchanges.polling(subscription, count))

    async def acknowledge(self, subscription: int, *tags: int) -> list[int]:
        """Settle deliveries; returns the tags the broker did not know, or no longer."""
        return await self._ask(exchanges.acknowledging(subscription, tags))

    async def deliveries(
        self, subscription: int, *, count: int = 100, idle_s: float = 0.05
    ) -> AsyncIterator[Delivery]:
        """Everything that comes, for ever; each is acknowledged when the next is asked for."""
        pause_s = idle_s / 16
        while True:
            found = await self.poll(subscription, count)
            if not found:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, idle_s)
                continue
            pause_s = idle_s / 16
            for delivery in found:
                yield delivery
                if delivery.tag:
                    await self.acknowledge(subscription, delivery.tag)

    async def close(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
            with contextlib.suppress(OSError):
                await streams[1].wait_closed()

    async def __aenter__(self) -> AsyncBlipmqClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _ask(self, exchange: Exchange[T]) -> T:
        loop = asyncio.get_running_loop()
        delays_ms = self._patience.delays_ms()
        while True:
            self._breaker.check(loop.time())
            try:
                async with self._turn:
                    answer = await self._exchange(exchange)
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

    async def _exchange(self, exchange: Exchange[T]) -> T:
        host, port = self._address
        try:
            async with asyncio.timeout(self._timeout_s):
                reader, writer = await self._connected()
                first = self._next_id
                fence = first + exchange.ids
                self._next_id = fence + 1
                writer.write(exchange.frames(first) + exchanges.ping(fence))
                await writer.drain()
                answers = Answers(fence)
                while not answers.take(await self._receive(reader)):
                    pass
        except (OSError, TimeoutError) as error:
            raise ConnectionLost(f"{host}:{port}: {error or 'timed out'}") from error
        except asyncio.CancelledError:
            # The answers may still come: they must not be taken for those of the next exchange.
            streams, self._streams = self._streams, None
            if streams is not None:
                streams[1].close()
            raise
        return exchange.read(answers, first)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
            self._reader, self._waiting, self._next_id = Reader(), [], 3
            reader, writer = self._streams
            writer.write(exchanges.greeting(self._key))
            try:
                while not exchanges.greeted(await self._receive(reader)):
                    pass
            except BaseException:
                self._streams = None
                writer.close()
                raise
        return self._streams

    async def _receive(self, reader: asyncio.StreamReader) -> Frame:
        while not self._waiting:
            data = await reader.read(READ_BYTES)
            if not data:
                raise ConnectionLost("the broker closed the connection")
            self._waiting = self._reader.feed(data)
            self._waiting.reverse()
        return self._waiting.pop()

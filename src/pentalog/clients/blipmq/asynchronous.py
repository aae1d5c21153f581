"""The client for asyncio: one connection, one exchange at a time, callers wait in line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from pentalog.clients.blipmq import exchanges
from pentalog.clients.blipmq.exchanges import (
    READ_BYTES,
    Answers,
    Delivery,
    Exchange,
    Frame,
    Reader,
)
from pentalog.clients.patience import CircuitBreaker, Patience
from pentalog.clients.reconnection import AsyncReconnecting, ConnectionLost

T = TypeVar("T")


class AsyncBlipmqClient(AsyncReconnecting):
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
        super().__init__(address, timeout_s, patience, breaker)
        self._key = key
        self._reader = Reader()
        self._waiting: list[Frame] = []
        self._next_id = 1

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

    async def _ask(self, exchange: Exchange[T]) -> T:
        return await self._persist(lambda: self._exchange(exchange))

    async def _exchange(self, exchange: Exchange[T]) -> T:
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
            raise self._lost(error) from error
        except asyncio.CancelledError:
            self._abandon()
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
                self._abandon()
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

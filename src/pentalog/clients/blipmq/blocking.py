"""The client for programs that wait: one connection, one exchange at a time."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
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
from pentalog.clients.reconnection import ConnectionLost, Reconnecting

T = TypeVar("T")


class BlipmqClient(Reconnecting):
    """Connects when it must, and again when the connection was lost.

    What failed for the connection or the broker is sent again after growing waits, so a message
    may be published twice; give `Patience(retries_max=0)` where that is worse than an error.  A
    subscription outlives its connection: its number may be kept and polled later, by anybody.
    Not for use by several threads.
    """

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

    def ping(self) -> None:
        """Returns when the broker has answered."""
        self._ask(exchanges.pinging())

    def publish(self, topic: str, *messages: bytes, qos: int = 1) -> None:
        """Returns when the broker has them all; with quality 1, when they are on its disk."""
        for exchange in exchanges.publishing(topic, messages, qos):
            self._ask(exchange)

    def subscribe(self, topic: str, *, qos: int = 1) -> int:
        """A new subscription that begins now; with quality 1 deliveries are acknowledged."""
        return self._ask(exchanges.subscribing(topic, qos))

    def poll(self, subscription: int, count: int = 1) -> list[Delivery]:
        """Up to `count` deliveries (1000 at most); none if there is nothing now."""
        return self._ask(exchanges.polling(subscription, count))

    def acknowledge(self, subscription: int, *tags: int) -> list[int]:
        """Settle deliveries; returns the tags the broker did not know, or no longer."""
        return self._ask(exchanges.acknowledging(subscription, tags))

    def deliveries(
        self, subscription: int, *, count: int = 100, idle_s: float = 0.05
    ) -> Iterator[Delivery]:
        """Everything that comes, for ever; each is acknowledged when the next is asked for."""
        pause_s = idle_s / 16
        while True:
            found = self.poll(subscription, count)
            if not found:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, idle_s)
                continue
            pause_s = idle_s / 16
            for delivery in found:
                yield delivery
                if delivery.tag:
                    self.acknowledge(subscription, delivery.tag)

    def _ask(self, exchange: Exchange[T]) -> T:
        return self._persist(lambda: self._exchange(exchange))

    def _exchange(self, exchange: Exchange[T]) -> T:
        try:
            connection = self._connected()
            first = self._next_id
            fence = first + exchange.ids
            self._next_id = fence + 1
            connection.sendall(exchange.frames(first) + exchanges.ping(fence))
            answers = Answers(fence)
            while not answers.take(self._receive(connection)):
                pass
        except OSError as error:
            raise self._lost(error) from error
        return exchange.read(answers, first)

    def _connected(self) -> socket.socket:
        if self._socket is None:
            connection = self._connect()
            self._reader, self._waiting, self._next_id = Reader(), [], 3
            connection.sendall(exchanges.greeting(self._key))
            try:
                while not exchanges.greeted(self._receive(connection)):
                    pass
            except BaseException:
                self.close()
                raise
            return connection
        return self._socket

    def _receive(self, connection: socket.socket) -> Frame:
        while not self._waiting:
            data = connection.recv(READ_BYTES)
            if not data:
                raise ConnectionLost("the broker closed the connection")
            self._waiting = self._reader.feed(data)
            self._waiting.reverse()
        return self._waiting.pop()

"""Connections to the broker in one name: few at a time, and closed when nobody uses them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TypeVar

from pentalog.clients.kafka import ClientOptions, Cluster
from pentalog.clients.kafka.errors import Refused
from pentalog.console.place import Place
from pentalog.console.search import Search

T = TypeVar("T")

_THREADS: Final = 16


class Threads:
    """Threads that questions to the broker wait on: those of unknown visitors have their own."""

    def __init__(self) -> None:
        self.known = ThreadPoolExecutor(_THREADS, "pentalog-ask")
        self.unknown = ThreadPoolExecutor(_THREADS // 4, "pentalog-unknown")
        self.searches: dict[bool, set[Search]] = {True: set(), False: set()}
        """Searches that run, or whose hits are kept, of users and of unknown visitors."""


class Connections:
    def __init__(
        self, place: Place, options: ClientOptions, threads: ThreadPoolExecutor, at_once: int
    ) -> None:
        """At most `at_once` questions are asked at a time; others wait for their turn."""
        self.options = options
        self._place = place
        self._threads = threads
        self._turns = asyncio.Semaphore(at_once)
        self._idle: list[tuple[float, Cluster]] = []
        self._closed = False

    def use(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads

    async def ask(self, question: Callable[[Cluster], T]) -> T:
        """Ask the broker on a thread; raises `KafkaFailed`."""
        async with self._turns:
            cluster = self._idle.pop()[1] if self._idle else self.cluster()
            try:
                found = await asyncio.wrap_future(self._threads.submit(question, cluster))
            except Refused:
                self._keep(cluster)
                raise
            except BaseException:
                cluster.close()
                raise
            self._keep(cluster)
            return found

    def cluster(self) -> Cluster:
        """Connections for one use; the caller closes them."""
        # With the broker's certificate of today: it may have been replaced.
        certificate = self._place.certificate()
        return Cluster(self._place.servers, replace(self.options, tls_certificate=certificate))

    def _keep(self, cluster: Cluster) -> None:
        if self._closed:
            cluster.close()
        else:
            self._idle.append((time.monotonic(), cluster))

    def close_idle(self, unused_s: float = 0.0) -> None:
        """Close those that were not used for so long."""
        before = time.monotonic() - unused_s
        for _, cluster in [one for one in self._idle if one[0] <= before]:
            cluster.close()
        self._idle = [one for one in self._idle if one[0] > before]

    def close(self) -> None:
        """Close all; those in use when their question is answered."""
        self._closed = True
        self.close_idle()

"""Members of consumer groups in all clients: what they were assigned, what they have read.

Run as a program it is one member in a process of its own, which can be killed; it prints its
assignment whenever that changes.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

SESSION_MS = 2000


class GroupMember(Protocol):
    """Polls on a thread of its own from the start until it is closed."""

    @property
    def read(self) -> list[tuple[int, int, bytes]]:
        """Partition, offset and value."""

    @property
    def assigned(self) -> set[int]: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


class PollingMember:
    """A member whose client must be used from one thread."""

    def __init__(self) -> None:
        self.read: list[tuple[int, int, bytes]] = []
        self.assigned: set[int] = set()
        self._over = threading.Event()
        self._commit_wanted = threading.Event()
        self._committed = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def commit(self) -> None:
        self._committed.clear()
        self._commit_wanted.set()
        assert self._committed.wait(60), "the commit was not answered"
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            self._poll()
            if self._commit_wanted.is_set():
                self._commit_wanted.clear()
                try:
                    self._commit()
                except Exception as failure:
                    self._failure = failure
                self._committed.set()
        self._end()

    def _poll(self) -> None:
        raise NotImplementedError

    def _commit(self) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


class ConfluentMember(PollingMember):
    def __init__(self, address: str, group: str, topic: str, **settings: Any) -> None:
        from confluent_kafka import Consumer

        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 500,
                "log_level": 0,
                **settings,
            }
        )
        self._consumer.subscribe([topic])
        super().__init__()

    def _poll(self) -> None:
        for message in self._consumer.consume(500, timeout=0.05):
            if message.error() is None:
                self.read.append((message.partition(), message.offset(), message.value()))
        self.assigned = {part.partition for part in self._consumer.assignment()}

    def _commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def _end(self) -> None:
        self._consumer.close()


class KafkaPythonMember(PollingMember):
    def __init__(self, address: str, group: str, topic: str, **settings: Any) -> None:
        from kafka import KafkaConsumer

        self._consumer = KafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=500,
            **settings,
        )
        super().__init__()

    def _poll(self) -> None:
        for records in self._consumer.poll(timeout_ms=500).values():
            self.read += [(r.partition, r.offset, r.value) for r in records]
        self.assigned = {part.partition for part in self._consumer.assignment()}

    def _commit(self) -> None:
        self._consumer.commit()

    def _end(self) -> None:
        self._consumer.close(autocommit=False)


class AiokafkaMember:
    def __init__(self, address: str, group: str, topic: str, **settings: Any) -> None:
        self.read: list[tuple[int, int, bytes]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._consumer: Any = None
        self._task: asyncio.Task[None] | None = None
        self._do(self._start(address, group, topic, settings))

    @property
    def assigned(self) -> set[int]:
        return {part.partition for part in self._consumer.assignment()}

    def commit(self) -> None:
        self._do(self._consumer.commit())

    def close(self) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self, address: str, group: str, topic: str, settings: Any) -> None:
        from aiokafka import AIOKafkaConsumer

        self._consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=500,
            **settings,
        )
        await self._consumer.start()
        self._task = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        async for record in self._consumer:
            self.read.append((record.partition, record.offset, record.value))

    async def _stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._consumer.stop()

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


KINDS: dict[str, Callable[..., GroupMember]] = {
    "confluent": ConfluentMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}


def main() -> None:
    kind, address, group, topic = sys.argv[1:]
    member = KINDS[kind](address, group, topic)
    shown: set[int] | None = None
    while True:
        assigned = member.assigned
        if assigned != shown:
            print(*sorted(assigned), flush=True)
            shown = assigned
        time.sleep(0.05)


if __name__ == "__main__":
    main()

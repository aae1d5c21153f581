"""aiokafka: the protocol in Python on asyncio, with its own record code."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from kafka_clients.event import TIMEOUT_S, Event, Read

Answer = TypeVar("Answer")


class Aiokafka:
    name = "aiokafka"

    def missing(self) -> str:
        return ""

    def expressible(self, event: Event) -> Event | None:
        # Its producer refuses records with neither key nor value.
        return None if event.key is None and event.value is None else event

    def create_topic(
        self, address: str, topic: str, *, partitions: int, settings: Mapping[str, str]
    ) -> None:
        async def create() -> None:
            client = AIOKafkaAdminClient(bootstrap_servers=address)
            await client.start()
            try:
                new = NewTopic(
                    name=topic,
                    num_partitions=partitions,
                    replication_factor=1,
                    topic_configs=dict(settings),
                )
                answer = await client.create_topics([new])
                refused = [error for error in answer.topic_errors if error[1] != 0]
                assert not refused, refused
            finally:
                await client.close()

        _run(create())

    def write(
        self, address: str, topic: str, events: Sequence[Event], *, codec: str, partition: int
    ) -> None:
        write(
            address,
            topic,
            events,
            {"compression_type": None if codec == "none" else codec},
            partition,
        )

    def read(self, address: str, topic: str, *, partition: int, count: int) -> list[Read]:
        at = aiokafka.TopicPartition(topic, partition)

        async def read(client: Any) -> list[Read]:
            client.assign([at])
            await client.seek_to_beginning(at)
            found: list[Read] = []
            while len(found) < count:
                polled = await client.getmany(at, timeout_ms=1000, max_records=count - len(found))
                for record in polled.get(at, []):
                    event = Event(record.key, record.value, record.headers, record.timestamp)
                    found.append(Read(record.offset, event))
            return found

        return _ask(address, read)

    def earliest(self, address: str, topic: str, partition: int) -> int:
        at = aiokafka.TopicPartition(topic, partition)

        async def ask(client: Any) -> int:
            return int((await client.beginning_offsets([at]))[at])

        return _ask(address, ask)

    def latest(self, address: str, topic: str, partition: int) -> int:
        at = aiokafka.TopicPartition(topic, partition)

        async def ask(client: Any) -> int:
            return int((await client.end_offsets([at]))[at])

        return _ask(address, ask)

    def at_time(self, address: str, topic: str, partition: int, timestamp_ms: int) -> int:
        at = aiokafka.TopicPartition(topic, partition)

        async def ask(client: Any) -> int:
            answer = (await client.offsets_for_times({at: timestamp_ms}))[at]
            return -1 if answer is None else int(answer.offset)

        return _ask(address, ask)


def write(
    address: str,
    topic: str,
    events: Sequence[Event],
    settings: Mapping[str, Any],
    partition: int,
) -> list[int]:
    """Write in order; gives the offset each event was acknowledged with."""

    async def write_all() -> list[int]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address, acks="all", linger_ms=2, **settings
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    value=event.value,
                    key=event.key,
                    headers=list(event.headers),
                    partition=partition,
                    timestamp_ms=event.timestamp_ms,
                )
                for event in events
            ]
            return [(await future).offset for future in sent]
        finally:
            await producer.stop()

    return _run(write_all())


def _ask(address: str, question: Callable[[Any], Awaitable[Answer]]) -> Answer:
    async def asked() -> Answer:
        async with _consumer(address) as client:
            return await question(client)

    return _run(asked())


@contextlib.asynccontextmanager
async def _consumer(address: str) -> AsyncIterator[Any]:
    client = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=address, group_id=None, enable_auto_commit=False, check_crcs=True
    )
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


def _run(work: Awaitable[Answer]) -> Answer:
    return asyncio.run(asyncio.wait_for(work, TIMEOUT_S))

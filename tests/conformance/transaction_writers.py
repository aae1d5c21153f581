"""Transactional producers of three clients behind one small face."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

import aiokafka
import confluent_kafka
import kafka
from aiokafka.errors import KafkaError, ProducerFenced
from kafka.consumer.group import ConsumerGroupMetadata as KafkaPythonGroup
from kafka.errors import InvalidProducerEpochError, ProducerFencedError
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaPythonPartition

T = TypeVar("T")
TIMEOUT_S = 180


class Fenced(Exception):
    """The client was told that another one has taken its name over, or that it was too slow."""


class Writer(Protocol):
    def __init__(self, address: str, name: str, *, timeout_ms: int = 60_000) -> None: ...
    def begin(self) -> None: ...
    def send(self, topic: str, partition: int, *values: bytes) -> None:
        """Written when it returns, not yet seen."""

    def offsets(self, group: str, topic: str, partition: int, offset: int) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class ConfluentWriter:
    def __init__(self, address: str, name: str, *, timeout_ms: int = 60_000) -> None:
        settings = {
            "bootstrap.servers": address,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
        }
        self._address = address
        self._producer = confluent_kafka.Producer(settings)
        self._producer.init_transactions(TIMEOUT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, *values: bytes) -> None:
        for value in values:
            self._producer.produce(topic, value, partition=partition)
        assert self._producer.flush(TIMEOUT_S) == 0

    def offsets(self, group: str, topic: str, partition: int, offset: int) -> None:
        settings = {"bootstrap.servers": self._address, "group.id": group}
        consumer = confluent_kafka.Consumer(settings)
        places = [confluent_kafka.TopicPartition(topic, partition, offset)]
        try:
            self._producer.send_offsets_to_transaction(
                places, consumer.consumer_group_metadata(), TIMEOUT_S
            )
        finally:
            consumer.close()

    def commit(self) -> None:
        try:
            self._producer.commit_transaction(TIMEOUT_S)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() == confluent_kafka.KafkaError._FENCED:
                raise Fenced from error
            raise

    def abort(self) -> None:
        self._producer.abort_transaction(TIMEOUT_S)

    def close(self) -> None:
        # A fenced one says so once more.
        with contextlib.suppress(confluent_kafka.KafkaException):
            self._producer.flush(1)


class KafkaPythonWriter:
    def __init__(self, address: str, name: str, *, timeout_ms: int = 60_000) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=address, transactional_id=name, transaction_timeout_ms=timeout_ms
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, *values: bytes) -> None:
        sent = [self._producer.send(topic, value, partition=partition) for value in values]
        for one in sent:
            one.get(TIMEOUT_S)

    def offsets(self, group: str, topic: str, partition: int, offset: int) -> None:
        places = {KafkaPythonPartition(topic, partition): OffsetAndMetadata(offset, "", -1)}
        self._producer.send_offsets_to_transaction(places, KafkaPythonGroup(group, -1, "", None))

    def commit(self) -> None:
        try:
            self._producer.commit_transaction()
        except (ProducerFencedError, InvalidProducerEpochError) as error:
            raise Fenced from error

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=1)


class AiokafkaWriter:
    def __init__(self, address: str, name: str, *, timeout_ms: int = 60_000) -> None:
        self._loop = asyncio.new_event_loop()

        async def start() -> aiokafka.AIOKafkaProducer:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=address,
                transactional_id=name,
                transaction_timeout_ms=timeout_ms,
            )
            await producer.start()
            return producer

        self._producer = self._run(start())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(asyncio.wait_for(work, TIMEOUT_S))

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, *values: bytes) -> None:
        async def send() -> None:
            sent = [await self._producer.send(topic, one, partition=partition) for one in values]
            await asyncio.gather(*sent)

        self._run(send())

    def offsets(self, group: str, topic: str, partition: int, offset: int) -> None:
        place = aiokafka.TopicPartition(topic, partition)
        self._run(self._producer.send_offsets_to_transaction({place: offset}, group))

    def commit(self) -> None:
        try:
            self._run(self._producer.commit_transaction())
        except ProducerFenced as error:
            raise Fenced from error

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        with contextlib.suppress(KafkaError):
            self._run(self._producer.stop())
        self._loop.close()


WRITERS: Sequence[type[Writer]] = (ConfluentWriter, KafkaPythonWriter, AiokafkaWriter)

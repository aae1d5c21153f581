"""A whole broker and a connection to it, for the requests about transactions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kafka"))

from disk_broker import Connection, DiskBroker
from kafka_requests import fetch, produce, request
from kafka_world import answer_of, records

from pentalog.broker.port import TopicSpec


class Client:
    """Asks one request after the other, in any version."""

    def __init__(self, broker: DiskBroker) -> None:
        self.broker = broker
        self._connection = Connection(broker)

    def ask(self, key: int, version: int, **fields: Any) -> Any:
        return answer_of(key, version, self.raw(key, version, **fields))

    def raw(self, key: int, version: int, **fields: Any) -> bytes:
        return self._connection.ask(request(key, version, fields))

    def init(self, name: str | None = "x", version: int = 5, **fields: Any) -> Any:
        fields.setdefault("transaction_timeout", timedelta(seconds=60))
        return self.ask(22, version, transactional_id=name, **fields)

    def write(
        self,
        who: Any,
        *,
        version: int = 12,
        partition: int = 0,
        sequence: int = 0,
        name: str | None = "x",
    ) -> int:
        """One transactional record; returns the error."""
        data = records(
            1,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        frame = produce(version, [("t", partition, data)], acks=-1, transactional_id=name)
        answer = answer_of(0, version, self._connection.ask(frame))
        (part,) = answer.responses[0].partition_responses
        return int(part.error_code)

    def end(self, who: Any, version: int = 5, *, commit: bool = True, name: str = "x") -> Any:
        return self.ask(
            26,
            version,
            transactional_id=name,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            committed=commit,
        )

    def add(self, who: Any, version: int = 3, *partitions: int, topic: str = "t") -> list[int]:
        """Add partitions to the transaction; returns the errors."""
        topics = [{"name": topic, "partitions": list(partitions or (0,))}]
        fields: dict[str, Any] = {
            "v3_and_below_transactional_id": "x",
            "v3_and_below_producer_id": who.producer_id,
            "v3_and_below_producer_epoch": who.producer_epoch,
            "v3_and_below_topics": topics,
        }
        answer = self.ask(24, version, **fields)
        (found,) = answer.results_by_topic_v3_and_below
        return [int(part.partition_error_code) for part in found.results_by_partition]

    def read(self, offset: int = 0, *, isolation: int = 1, partition: int = 0) -> Any:
        frame = fetch(12, [("t", partition, offset)], isolation=isolation)
        answer = answer_of(1, 12, self._connection.ask(frame))
        return answer.responses[0].partitions[0]


@pytest.fixture
def open_client(tmp_path: Path) -> Iterator[Callable[..., Client]]:
    opened: list[DiskBroker] = []

    def open_one(**settings: Any) -> Client:
        for before in opened:
            before.close()
        opened[:] = [DiskBroker(tmp_path, **settings)]
        broker = opened[0]
        if not broker.topics.all():
            broker.topics.create(TopicSpec(name="t", partitions=3))
            broker.runtime.run()
        return Client(broker)

    yield open_one
    for broker in opened:
        broker.close()


@pytest.fixture
def client(open_client: Callable[..., Client]) -> Client:
    return open_client()

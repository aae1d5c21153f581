"""Mutated Kafka frames against two equal brokers, one fed in whole streams, one in crumbs.

What must hold for any bytes: every byte is used or waited for, nothing raises, answers are whole
frames in order or the connection ends, both brokers answer the same, and nothing grows without
bound.  A failure names the seed and the round; the same seed gives the same frames.
"""

from __future__ import annotations

import random
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "protocols" / "kafka"))

from disk_broker import Connection, DiskBroker
from kafka_requests import fetch, produce, request
from kafka_schemas import frame, sample
from kafka_world import records
from kio.index import load_request_schema
from tests.fuzz.twins import Twins, mutated_frame

from pentalog.broker.port import TopicSpec
from pentalog.protocols.kafka.api import APIS
from pentalog.protocols.kafka.door import door_of
from pentalog.protocols.kafka.fetch_sessions import SESSIONS_MAX

PARTITIONS_MAX = 300
"""More than this on disk, and the brokers are made anew: mutated requests create topics."""


def corpus(broker: DiskBroker, dice: random.Random) -> list[bytes]:
    """Sound frames of every request and version: some that mean something here, some at random."""
    found: list[bytes] = []
    topic_id = broker.topics.get("orders").topic_id
    for version in range(3, 14):
        topic: Any = topic_id if version >= 13 else "orders"
        for acks in (-1, 0, 1):
            found.append(produce(version, [(topic, 0, records(2))], acks=acks))
            parts = [(topic, 0, records(1)), (topic, 1, records(3))]
            found.append(produce(version, parts, acks=acks))
        sequenced = records(2, producer_id=5, producer_epoch=0, base_sequence=0)
        found.append(produce(version, [(topic, 1, sequenced)], acks=-1))
    for version in range(4, 19):
        topic = topic_id if version >= 13 else "orders"
        parts = [(topic, 0, 0), (topic, 1, 2)]
        sessions = ((0, 0), (1, 1))
        found += [fetch(version, parts), fetch(version, parts, wait_ms=300)]
        found += [fetch(version, parts, session=session) for session in sessions]
    creation = {"name": "made", "num_partitions": 2, "replication_factor": 1}
    creation_fields = {
        "topics": [{**creation, "assignments": [], "configs": []}],
        "timeout": timedelta(seconds=1),
        "validate_only": False,
    }
    found += [request(19, version, creation_fields) for version in range(2, 8)]
    found += [request(3, version, {"topics": []}) for version in range(4)]
    for api in APIS.values():
        for version in range(api.version_min, api.version_max + 1):
            schema = load_request_schema(api.key, version)
            found += [frame(sample(schema, dice)[0]) for _ in range(2)]
    return found


class Fuzz(Twins[DiskBroker]):
    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        self._corpus: list[bytes] = []

    def closed(self, broker: DiskBroker) -> None:
        broker.close()

    def worn_out(self) -> bool:
        return sum(topic.partitions for topic in self.pair[0].topics.all()) > PARTITIONS_MAX

    def settings(self) -> dict[str, Any]:
        return {
            "seed": self.dice.getrandbits(32),
            "flush_interval_ms": self.dice.choice((0, 100)),
            "frame_bytes_max": 1 << 20,
            "journal_bytes": 1 << 20,
        }

    def opened(self, directory: Path, settings: dict[str, Any]) -> DiskBroker:
        broker = DiskBroker(directory, **settings)
        with broker.seeded():
            broker.topics.create(TopicSpec(name="orders", partitions=2))
            broker.runtime.run()
        if not self.pair:
            self._corpus = corpus(broker, self.dice)
        return broker

    def round(self) -> None:
        dice = self.dice
        chosen = [dice.choice(self._corpus) for _ in range(dice.randrange(1, 16))]
        if dice.random() < 0.3:
            # A run of the same, so that the fast path meets mutations in the middle of it.
            chosen = chosen[:2] * 6
        broken = [mutated_frame(one, dice, self._corpus, share=0.2) for one in chosen]
        data = b"".join(broken)
        self.frames += len(broken)
        where = self.where
        whole, crumbs = (Connection(broker) for broker in self.pair)
        try:
            self.feed_both(whole, crumbs, data)
            for connection in (whole, crumbs):
                connection.run()
                with connection.broker.seeded():
                    connection.broker.runtime.advance(400)
        except Exception as flaw:
            raise AssertionError(f"{where}: {data.hex()}") from flaw
        self._compare(whole, crumbs, where, data)

    def _compare(self, whole: Connection, crumbs: Connection, where: str, data: bytes) -> None:
        assert whole.line.hung_up == crumbs.line.hung_up, f"{where}: {data.hex()}"
        if whole.line.sent() != crumbs.line.sent():
            pairs = zip(whole.line.frames(), crumbs.line.frames(), strict=False)
            differing = next(((a.hex(), b.hex()) for a, b in pairs if a != b), None)
            raise AssertionError(f"{where}: {differing} to {data.hex()}")
        self.answers += len(whole.line.frames())
        self.hang_ups += whole.line.hung_up
        for connection in (whole, crumbs):
            connection.session.close()
            assert not connection.session.waits, where
            sessions = door_of(connection.broker.broker).fetch_sessions
            assert len(sessions) <= SESSIONS_MAX, where

"""Answers byte for byte, to one fixed conversation in every version of every request.

A change of these bytes is a change of what clients see.  To accept one:
`python tests/golden/kafka/test_kafka_golden.py`, and look at the difference.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "protocols" / "kafka"))

from kafka_requests import fetch, produce, request
from kafka_world import World, records

GOLDEN = Path(__file__).with_name("answers.txt")
TOPIC_ID = UUID(int=1)


def named(version: int, by_id: int) -> str | UUID:
    return TOPIC_ID if version >= by_id else "orders"


def conversation() -> list[tuple[int, int, bytes]]:
    """Key, version and request."""
    asked: list[tuple[int, int, bytes]] = []
    software = {"client_software_name": "golden", "client_software_version": "1"}
    asked.extend((18, version, request(18, version, software)) for version in range(5))
    for version in range(3, 14):
        topic = named(version, 13)
        asked.append((0, version, produce(version, [(topic, 0, records(2))], acks=-1)))
        parts = [(topic, 0, records(1)), (topic, 9, records(1)), (topic, 1, None)]
        asked.append((0, version, produce(version, parts)))
    for version in range(4, 19):
        topic = named(version, 13)
        asked.append((1, version, fetch(version, [(topic, 0, 30), (topic, 1, 0), (topic, 9, 0)])))
        plain = fetch(version, [(topic, 0, 31)], isolation=1, session=(77, 5))
        asked.append((1, version, plain))
    for version in range(1, 12):
        # One time for each request: a partition that is named twice is refused.
        asked += [(2, version, request(2, version, list_offsets(when))) for when in (-1, -2, 1001)]
    asked += [(3, version, request(3, version, metadata(version))) for version in range(14)]
    for version in range(6):
        identity = {"transactional_id": None, "transaction_timeout": timedelta(seconds=1)}
        asked.append((22, version, request(22, version, identity)))
    for version in range(2, 5):
        partition = {"partition": 0, "current_leader_epoch": 0, "leader_epoch": 0}
        fields = {"replica_id": -1, "topics": [{"topic": "orders", "partitions": [partition]}]}
        asked.append((23, version, request(23, version, fields)))
    return asked


def list_offsets(when: int) -> dict[str, Any]:
    partitions = [
        {"partition_index": index, "current_leader_epoch": -1, "timestamp": when}
        for index in (0, 9)
    ]
    topics = [{"name": "orders", "partitions": partitions}]
    return {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": topics,
        "timeout": timedelta(seconds=1),
    }


def metadata(version: int) -> dict[str, Any]:
    topics = [{"topic_id": None, "name": name} for name in ("orders", "bad/name")]
    if version >= 12:
        topics.append({"topic_id": UUID(int=99), "name": None})
    return {
        "topics": topics,
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }


def answered() -> str:
    made = World()
    assert made.topics.add("orders", 2).topic_id == TOPIC_ID
    lines = []
    for key, version, data in conversation():
        before = len(made.line.frames())
        made.feed(data)
        (answer,) = made.line.frames()[before:]
        lines.append(f"{key} {version} {answer.hex()}\n")
    return "".join(lines)


def test_answers_have_not_changed() -> None:
    assert answered().splitlines() == GOLDEN.read_text().splitlines()


if __name__ == "__main__":
    GOLDEN.write_text(answered())

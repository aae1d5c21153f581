"""DescribeLogDirs: the size of every partition in the data directory.

v1 is the first that Kafka 4 serves; v2 is flexible; v3 has an error for the whole answer.
v4 tells the size of the volume and how much of it is left.
v5 tells whether the directory takes new partitions; this one always does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError
from pentalog.model.kafka_names import is_carried
from pentalog.model.types import Partition
from pentalog.protocols.kafka.authorization import refusal_of
from pentalog.protocols.kafka.errors import code_of
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    denied = refusal_of(call.access, Operation.DESCRIBE, Kind.CLUSTER)
    if denied:
        call.answer({"error_code": denied, "results": []})
        return
    asked = call.body.topics
    topics = call.context.broker.topics.all(internal=True)
    wanted: dict[str, set[int] | None]
    if asked is None:
        wanted = {topic.name: None for topic in topics if is_carried(topic.name)}
    else:
        wanted = {topic.topic: set(topic.partitions) for topic in asked}
    described = []
    for topic in topics:
        if topic.name in wanted:
            indexes = wanted[topic.name]
            every = range(topic.partitions)
            given = every if indexes is None else [index for index in every if index in indexes]
            described.append({"name": topic.name, "partitions": _sizes(call, topic.name, given)})
    try:
        volume = call.context.broker.log.volume()
    except BrokerError as refusal:
        call.answer({"results": [_directory(call, [], error_code=code_of(refusal))]})
        return
    call.answer({"results": [_directory(call, described, **volume._asdict())]})


def _directory(call: Call, topics: list[dict[str, Any]], **fields: int) -> dict[str, Any]:
    return {"log_dir": str(call.context.config.data), "topics": topics, **fields}


def _sizes(call: Call, topic: str, indexes: Iterable[int]) -> list[dict[str, Any]]:
    log = call.context.broker.log
    return [
        {
            "partition_index": index,
            "partition_size": log.size_bytes(Partition(topic, index)),
            "offset_lag": 0,
            "is_future_key": False,
        }
        for index in indexes
    ]


API = Api(35, "DescribeLogDirs", 1, 5, serve)

"""DescribeLogDirs: the size of every partition in the data directory.

v1 is the first that Kafka 4 serves; v2 is flexible; v3 has an error for the whole answer.
v4 tells the size of the volume and how much of it is left.
v5 tells whether the directory takes new partitions; this one always does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Any

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError
from pentalog.model.kafka_names import is_carried
from pentalog.model.types import Partition
from pentalog.protocols.kafka.authorization import refusal_of
from pentalog.protocols.kafka.errors import code_of
from pentalog.protocols.kafka.messages import Api, Call, Steps


def serve(call: Call) -> Steps[None]:
    denied = refusal_of(call.access, Operation.DESCRIBE, Kind.CLUSTER)
    if denied:
        call.answer({"error_code": denied, "results": []})
        return
    asked = call.body.topics
    topics = call.context.broker.topics.all(internal=True)
    wanted: dict[str, set[int]] = {}
    for named in asked or ():
        wanted.setdefault(named.topic, set()).update(named.partitions)
    described = []
    for topic in topics:
        call.spent += 1
        if topic.name in wanted:
            given: Sequence[int] = sorted(wanted[topic.name])
            given = given[bisect_left(given, 0) : bisect_left(given, topic.partitions)]
        elif asked is None and is_carried(topic.name):
            given = range(topic.partitions)
        else:
            continue
        sizes = yield from call.each(given, partial(_size, call, topic.name))
        described.append({"name": topic.name, "partitions": sizes})
    try:
        volume = call.context.broker.log.volume()
    except BrokerError as refusal:
        call.answer({"results": [_directory(call, [], error_code=code_of(refusal))]})
        return
    yield from call.reply({"results": [_directory(call, described, **volume._asdict())]})


def _directory(call: Call, topics: list[dict[str, Any]], **fields: int) -> dict[str, Any]:
    return {"log_dir": str(call.context.config.data), "topics": topics, **fields}


def _size(call: Call, topic: str, index: int) -> dict[str, Any]:
    return {
        "partition_index": index,
        "partition_size": call.context.broker.log.size_bytes(Partition(topic, index)),
        "offset_lag": 0,
        "is_future_key": False,
    }


API = Api(35, "DescribeLogDirs", 1, 5, serve)

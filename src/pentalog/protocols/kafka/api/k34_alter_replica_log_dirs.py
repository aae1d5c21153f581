"""AlterReplicaLogDirs: move partitions to another directory; there is one, and they are in it.

v1 is the first that Kafka 4 serves; v2 is flexible.
"""

from __future__ import annotations

from typing import Any

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import TopicNotFound
from pentalog.protocols.kafka.authorization import refusal_of
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    denied = refusal_of(call.access, Operation.ALTER, Kind.CLUSTER)
    results: dict[str, list[dict[str, Any]]] = {}
    for directory in call.body.dirs:
        here = directory.path == str(call.context.config.data)
        for topic in directory.topics:
            parts = results.setdefault(topic.name, [])
            for index in topic.partitions:
                error = _error(call, topic.name, index) if here else ErrorCode.log_dir_not_found
                parts.append({"partition_index": index, "error_code": denied or int(error)})
    call.answer(
        {"results": [{"topic_name": name, "partitions": parts} for name, parts in results.items()]}
    )


def _error(call: Call, topic: str, index: int) -> ErrorCode:
    try:
        found = call.context.broker.topics.get(topic)
    except TopicNotFound:
        return ErrorCode.unknown_topic_or_partition
    there = 0 <= index < found.partitions
    return ErrorCode.none if there else ErrorCode.unknown_topic_or_partition


API = Api(34, "AlterReplicaLogDirs", 1, 2, serve)

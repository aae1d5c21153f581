"""AlterReplicaLogDirs: move partitions to another directory; there is one, and they are in it.

v1 is the first that Kafka 4 serves; v2 is flexible.
"""

from __future__ import annotations

from typing import Any

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import TopicNotFound
from pentalog.protocols.kafka.authorization import refusal_of
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.messages import Api, Call, Steps


def serve(call: Call) -> Steps[None]:
    denied = refusal_of(call.access, Operation.ALTER, Kind.CLUSTER)
    results: dict[str, list[dict[str, Any]]] = {}
    for directory in call.body.dirs:
        here = directory.path == str(call.context.config.data)
        for topic in directory.topics:
            parts = results.setdefault(topic.name, [])

            def tell(index: int, topic: str = topic.name, here: bool = here) -> dict[str, int]:
                error = _error(call, topic, index) if here else ErrorCode.log_dir_not_found
                return {"partition_index": index, "error_code": denied or int(error)}

            parts += yield from call.each(topic.partitions, tell)
    told = [{"topic_name": name, "partitions": parts} for name, parts in results.items()]
    yield from call.reply({"results": told})


def _error(call: Call, topic: str, index: int) -> ErrorCode:
    try:
        found = call.context.broker.topics.get(topic)
    except TopicNotFound:
        return ErrorCode.unknown_topic_or_partition
    there = 0 <= index < found.partitions
    return ErrorCode.none if there else ErrorCode.unknown_topic_or_partition


API = Api(34, "AlterReplicaLogDirs", 1, 2, serve)

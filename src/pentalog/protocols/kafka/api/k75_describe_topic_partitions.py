"""DescribeTopicPartitions: topics with their partitions, a page at a time.

v0 is the only version.  No topics named means all; the cursor says where the next page begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pentalog.broker.port import Topic
from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import TopicNotFound
from pentalog.model.kafka_names import is_kafka_name
from pentalog.protocols.kafka.administration import OPERATIONS_NOT_ASKED
from pentalog.protocols.kafka.authorization import operations_on
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.messages import STEP_COST, Api, Call, Steps
from pentalog.protocols.kafka.names import kafka_name_flaw

PARTITIONS_MAX: Final = 2_000
"""Partitions in one answer, whatever was asked for."""


def serve(call: Call) -> Steps[None]:
    cursor = call.body.cursor
    first = cursor.topic_name if cursor is not None else ""
    left = max(1, min(PARTITIONS_MAX, call.body.response_partition_limit))
    described = []
    for name, topic in _topics(call):
        call.spent += 1
        if call.spent >= STEP_COST:
            call.spent = 0
            yield None
        if name < first:
            continue
        if call.body.topics and not call.access.allows(Operation.DESCRIBE, Kind.TOPIC, name):
            described.append(_refused(name, ErrorCode.topic_authorization_failed))
            continue
        if topic is None:
            described.append(_unknown(name))
            continue
        start = max(0, cursor.partition_index) if cursor is not None and name == first else 0
        if left == 0:
            yield from call.reply(_page(described, name, start))
            return
        end = min(topic.partitions, start + left)
        described.append(_known(call, topic, range(start, end)))
        left -= max(0, end - start)
        if end < topic.partitions:
            yield from call.reply(_page(described, name, end))
            return
    yield from call.reply({"topics": described, "next_cursor": None})


def _page(described: list[dict[str, Any]], name: str, index: int) -> dict[str, Any]:
    cursor = {"topic_name": name, "partition_index": index}
    return {"topics": described, "next_cursor": cursor}


def _topics(call: Call) -> Iterable[tuple[str, Topic | None]]:
    """Names in order, each with its topic if there is one."""
    topics = call.context.broker.topics
    if not call.body.topics:
        sees = call.access.sees
        every = (topic for topic in topics.all(internal=True) if is_kafka_name(topic.name))
        yield from ((topic.name, topic) for topic in every if sees(Kind.TOPIC, topic.name))
        return
    for name in sorted({topic.name for topic in call.body.topics}):
        try:
            yield name, topics.get(name)
        except TopicNotFound:
            yield name, None


def _known(call: Call, topic: Topic, indexes: range) -> dict[str, Any]:
    node_id = call.context.config.node_id
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "partitions": [
            {
                "partition_index": index,
                "leader_id": node_id,
                "leader_epoch": 0,
                "replica_nodes": (node_id,),
                "isr_nodes": (node_id,),
                "eligible_leader_replicas": (),
                "last_known_elr": (),
                "offline_replicas": (),
            }
            for index in indexes
        ],
        "topic_authorized_operations": operations_on(call.access, Kind.TOPIC, topic.name),
    }


def _unknown(name: str) -> dict[str, Any]:
    invalid = kafka_name_flaw(name) is not None
    code = ErrorCode.invalid_topic_exception if invalid else ErrorCode.unknown_topic_or_partition
    return _refused(name, code)


def _refused(name: str, code: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": int(code),
        "name": name,
        "topic_id": None,
        "partitions": (),
        "topic_authorized_operations": OPERATIONS_NOT_ASKED,
    }


API = Api(75, "DescribeTopicPartitions", 0, 0, serve)

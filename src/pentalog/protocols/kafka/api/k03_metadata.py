"""Metadata: which topics there are, and where; may create topics that are missing.

0: an empty list asks for all topics.  1: null does.  2: cluster id.  4: topic creation can be
declined.  7: leader epoch.  8: authorized operations.  9: flexible.  10: topic ids in answers.
11: no more operations on the cluster.  12: topics by id.  13: error of the whole request.
"""

from __future__ import annotations

from itertools import compress
from typing import Any, Final, TypeAlias
from uuid import UUID

from pentalog.broker.port import Topic, TopicSpec
from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError, TopicExists, TopicNotFound
from pentalog.model.kafka_names import is_carried, is_kafka_name
from pentalog.model.later import Later
from pentalog.protocols.kafka import codec
from pentalog.protocols.kafka.administration import OPERATIONS_NOT_ASKED
from pentalog.protocols.kafka.authorization import cluster_operations, operations_on
from pentalog.protocols.kafka.codec import Made
from pentalog.protocols.kafka.errors import ErrorCode, code_of
from pentalog.protocols.kafka.messages import STEP_COST, Api, Call, Steps
from pentalog.protocols.kafka.names import kafka_name_flaw
from pentalog.protocols.kafka.quotas import count_implicit_change

_KEPT_TOPICS_MAX: Final = 1000
"""An answer to a longer list is not kept: the list would be kept with it."""
_CREATED_MAX: Final = 1000
"""Topics that one request creates; its client asks again for the others."""
_Name: TypeAlias = str | UUID | None
_UNKNOWN: Final = int(ErrorCode.unknown_topic_or_partition)


def serve(call: Call) -> Steps[None]:
    asked = _asked(call)
    created: dict[_Name, int] = {}
    if asked:
        created = yield from _create_missing(call, asked)
    if created:
        settled = call.context.broker.topics.settle()
        yield settled
        created = _settled(settled, created)
    head, rest = yield from _answer(call, asked, created)
    call.line.send(head, rest)


def _asked(call: Call) -> tuple[_Name, ...] | None:
    """Ids where one is given, else names, each once, as Kafka answers; None: every topic."""
    topics = call.body.topics
    if topics is None or (call.version == 0 and not topics):
        return None
    if call.version < 12:
        return tuple(dict.fromkeys(topic.name for topic in topics))
    # Some clients leave the name out beside an id, others send an empty one.
    return tuple(
        dict.fromkeys(topic.name if topic.topic_id is None else topic.topic_id for topic in topics)
    )


def _create_missing(call: Call, asked: tuple[_Name, ...]) -> Steps[dict[_Name, int]]:
    """Create what is missing and may be created: name to error code.

    Also what was created is unknown in this answer, as Kafka has it: clients ask again, and one
    that only wants to know whether a topic is gone hears that it is.
    """
    context = call.context
    allowed = context.broker.settings.live.auto_create_topics
    if not (allowed and call.field("allow_auto_topic_creation", True)):
        return {}
    outcome: dict[_Name, int] = {}
    partitions = context.broker.settings.live.default_partitions
    room = _CREATED_MAX
    for name in asked:
        call.spent += 1
        if call.spent >= STEP_COST:
            call.spent = 0
            yield None
        if not isinstance(name, str) or kafka_name_flaw(name) is not None:
            continue
        try:
            context.broker.topics.get(name)
        except TopicNotFound:
            if not _may_create(call, name):
                outcome[name] = int(ErrorCode.topic_authorization_failed)
                continue
            outcome[name] = _UNKNOWN
            if not room or not count_implicit_change(call, partitions):
                continue  # its client asks again
            room -= 1
            spec = TopicSpec(name=name)
            try:
                yield context.broker.topics.prepare(spec)
                context.broker.topics.create(spec)
            except TopicExists:
                pass
            except BrokerError as refusal:
                outcome[name] = code_of(refusal)
            call.spent = STEP_COST
    return outcome


def _may_create(call: Call, name: str) -> bool:
    access = call.access
    return access.could(Operation.CREATE, Kind.CLUSTER) or (
        access.allows(Operation.DESCRIBE, Kind.TOPIC, name)
        and access.allows(Operation.CREATE, Kind.TOPIC, name)
    )


def _settled(settled: Later[None], created: dict[_Name, int]) -> dict[_Name, int]:
    """What was created but did not reach the disk is refused."""
    try:
        _ = settled.value
    except BrokerError as refusal:
        code = code_of(refusal)
        return {name: code if error == _UNKNOWN else error for name, error in created.items()}
    return created


def _answer(
    call: Call, asked: tuple[_Name, ...] | None, created: dict[_Name, int]
) -> Steps[tuple[bytes, bytes]]:
    """The frame in two pieces, the second of which may be kept for others who ask the same."""
    answers = call.door.metadata
    operations = (
        call.field("include_topic_authorized_operations", False),
        call.field("include_cluster_authorized_operations", False),
    )
    address = call.context.advertised("kafka")
    key = (call.version, asked, operations, address, call.access.stamp)
    kept = not created and (asked is None or len(asked) <= _KEPT_TOPICS_MAX)
    rest = answers.get(key) if kept else None
    if rest is None:
        topics = call.context.broker.topics
        version = topics.version
        fields = yield from _fields(call, asked, created)
        frame = yield from codec.encode_steps(3, call.version, 0, fields)
        rest = bytes(memoryview(frame)[8:])
        if kept and version == topics.version:
            answers.keep(key, rest)
    size = len(rest) + 4
    head = size.to_bytes(4, "big") + call.correlation_id.to_bytes(4, "big", signed=True)
    return head, rest


def _fields(
    call: Call, asked: tuple[_Name, ...] | None, created: dict[_Name, int]
) -> Steps[dict[str, Any]]:
    context = call.context
    address = context.advertised("kafka")
    node_id = context.config.node_id
    topics = context.broker.topics
    on_cluster = OPERATIONS_NOT_ASKED
    if call.field("include_cluster_authorized_operations", False):
        on_cluster = cluster_operations(call.access)
    if asked is None:
        sees = call.access.sees
        every = topics.all(internal=True)
        seen = yield from call.each(
            every, lambda topic: is_kafka_name(topic.name) and sees(Kind.TOPIC, topic.name)
        )
        listed = Made(list(compress(every, seen)), lambda topic: _topic(call, topic), at_once=16)
    else:
        listed = Made(asked, lambda name: _named(call, name, created.get(name, 0)), at_once=16)
    return {
        "brokers": [{"node_id": node_id, "host": address.host, "port": address.port, "rack": None}],
        "cluster_id": context.broker.cluster_id,
        "controller_id": node_id,
        "topics": listed,
        "cluster_authorized_operations": on_cluster,
    }


def _named(call: Call, name: _Name, error: int) -> dict[str, Any]:
    topics = call.context.broker.topics
    denied = int(ErrorCode.topic_authorization_failed)
    if isinstance(name, UUID):
        try:
            topic = topics.by_id(name)
            if not is_carried(topic.name):
                raise TopicNotFound("its name cannot be told")
        except TopicNotFound:
            return _missing(None, name, int(ErrorCode.unknown_topic_id))
        if not call.access.allows(Operation.DESCRIBE, Kind.TOPIC, topic.name):
            return _missing(None, name, denied)
        return _topic(call, topic)
    if name is None:
        # A name is neither given nor replaced by an id: only possible from version 10 on.
        empty = None if call.version >= 12 else ""
        return _missing(empty, None, int(ErrorCode.invalid_request))
    if error:
        return _missing(name, None, error)
    if not call.access.allows(Operation.DESCRIBE, Kind.TOPIC, name):
        return _missing(name, None, denied)
    try:
        return _topic(call, topics.get(name))
    except TopicNotFound as refusal:
        if kafka_name_flaw(name) is not None:
            return _missing(name, None, int(ErrorCode.invalid_topic_exception))
        return _missing(name, None, code_of(refusal))


def _missing(name: str | None, topic_id: UUID | None, error: int) -> dict[str, Any]:
    return {"error_code": error, "name": name, "topic_id": topic_id, "partitions": ()}


def _topic(call: Call, topic: Topic) -> dict[str, Any]:
    node_id = call.context.config.node_id
    nodes = (node_id,)
    operations = OPERATIONS_NOT_ASKED
    if call.field("include_topic_authorized_operations", False):
        operations = operations_on(call.access, Kind.TOPIC, topic.name)
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "partitions": Made(
            range(topic.partitions),
            lambda index: {
                "error_code": 0,
                "partition_index": index,
                "leader_id": node_id,
                "leader_epoch": 0,
                "replica_nodes": nodes,
                "isr_nodes": nodes,
                "offline_replicas": (),
            },
        ),
        "topic_authorized_operations": operations,
    }


API: Final = Api(3, "Metadata", 0, 13, serve)

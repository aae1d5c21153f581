"""DeleteTopics: delete topics by name or by id.

v1 is the first that Kafka 4 serves; v2 throttles before it answers; v3 may say that deletion is
switched off.  v4 is flexible; v5 adds a text to errors and may refuse for a quota, before it a
client over its quota is muted; v6 also takes ids.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import TopicNotFound
from pentalog.protocols.kafka.administration import answer_settled, error_fields, repeated
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused
from pentalog.protocols.kafka.messages import STEP_COST, Api, Call, Steps
from pentalog.protocols.kafka.quotas import count_change


class _Target(NamedTuple):
    name: str | None
    topic_id: UUID | None


def serve(call: Call) -> Steps[None]:
    targets = yield from _targets(call)
    names = yield from call.each(targets, lambda target: _name(call, target))
    twice = repeated(name for name in names if name is not None)
    changed = False

    def delete(named: tuple[_Target, str | None]) -> dict[str, Any]:
        nonlocal changed
        target, name = named
        try:
            if name in twice:
                raise Refused(
                    ErrorCode.invalid_request, f"topic {name!r} is named twice: name it once"
                )
            result = _delete(call, target, name)
        except REFUSALS as refusal:
            return {**target._asdict(), **error_fields(refusal)}
        changed = True
        return result

    results = yield from call.each(zip(targets, names, strict=True), delete, cost=STEP_COST)
    yield from answer_settled(call, {"responses": results}, results, changed=changed)


def _targets(call: Call) -> Steps[list[_Target]]:
    if call.version < 6:
        return (yield from call.each(call.body.topic_names, lambda name: _Target(name, None)))
    return (
        yield from call.each(call.body.topics, lambda topic: _Target(topic.name, topic.topic_id))
    )


def _name(call: Call, target: _Target) -> str | None:
    """The name of what is to be deleted; None if it cannot be told."""
    if target.topic_id is None or target.name is not None:
        return target.name
    try:
        return call.context.broker.topics.by_id(target.topic_id).name
    except TopicNotFound:
        return None


def _delete(call: Call, target: _Target, name: str | None) -> dict[str, Any]:
    if target.name is not None and target.topic_id is not None:
        raise Refused(ErrorCode.invalid_request, "both name and id are given: give one of them")
    if name is None and target.topic_id is None:
        raise Refused(ErrorCode.invalid_request, "neither name nor id is given: give one of them")
    if name is None:
        raise Refused(ErrorCode.unknown_topic_id, f"there is no topic with id {target.topic_id}")
    demand(call.access, Operation.DELETE, Kind.TOPIC, name)
    topics = call.context.broker.topics
    topic = topics.get(name)
    count_change(call, topic.partitions)
    topics.delete(name)
    return {"name": name, "topic_id": topic.topic_id, **error_fields(None)}


API = Api(20, "DeleteTopics", 1, 6, serve, finishes=True)

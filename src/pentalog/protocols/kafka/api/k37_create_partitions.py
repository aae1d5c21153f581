"""CreatePartitions: give topics more partitions.

v1 throttles before it answers; v2 is flexible; v3 may refuse for a quota, which this broker never
does.
"""

from __future__ import annotations

from typing import Any

from pentalog.protocols.kafka.administration import answer_settled, error_fields, repeated
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    twice = repeated(topic.name for topic in call.body.topics)
    results = []
    for name in twice:
        refusal = Refused(ErrorCode.invalid_request, f"topic {name!r} is named twice: name it once")
        results.append({"name": str(name), **error_fields(refusal)})
    for topic in call.body.topics:
        if topic.name in twice:
            continue
        flaw: Exception | None = None
        try:
            _grow(call, topic)
        except REFUSALS as refused:
            flaw = refused
        results.append({"name": topic.name, **error_fields(flaw)})
    answer_settled(call, {"results": results}, results, changed=not call.body.validate_only)


def _grow(call: Call, topic: Any) -> None:
    topics = call.context.broker.topics
    topics.grow(topic.name, topic.count, dry_run=True)
    if topic.assignments is not None:
        _check_assignments(call, topic, topics.get(topic.name).partitions)
    topics.grow(topic.name, topic.count, dry_run=call.body.validate_only)


def _check_assignments(call: Call, topic: Any, count: int) -> None:
    node_id = call.context.config.node_id
    added = topic.count - count
    if len(topic.assignments) != added:
        raise Refused(
            ErrorCode.invalid_replica_assignment,
            f"{added} partitions are to be added and {len(topic.assignments)} assignments given: "
            "give one for each",
        )
    for assignment in topic.assignments:
        if tuple(assignment.broker_ids) != (node_id,):
            raise Refused(
                ErrorCode.invalid_replica_assignment,
                f"a partition is assigned to brokers {list(assignment.broker_ids)[:10]}: the only "
                f"broker is {node_id}",
            )


API = Api(37, "CreatePartitions", 0, 3, serve)

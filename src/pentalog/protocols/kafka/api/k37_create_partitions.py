"""CreatePartitions: give topics more partitions.

v1 throttles before it answers; v2 is flexible; v3 may refuse for a quota, before it a client over
its quota is muted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pentalog.broker.port import TopicSpec
from pentalog.broker.security import Kind, Operation
from pentalog.model.later import Later
from pentalog.protocols.kafka.administration import answer_settled, error_fields, repeated
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused
from pentalog.protocols.kafka.messages import STEP_COST, Api, Call, Steps
from pentalog.protocols.kafka.quotas import count_change


def serve(call: Call) -> Steps[None]:
    twice = repeated(topic.name for topic in call.body.topics)
    wanted: dict[str, int | Exception] = {}
    for name in twice:
        flaw = Refused(ErrorCode.invalid_request, f"topic {name!r} is named twice: name it once")
        wanted[str(name)] = flaw
    prepared: list[Later[None]] = []

    def plan(topic: Any) -> None:
        if topic.name in twice:
            return
        try:
            prepared.extend(_prepare(call, topic))
            wanted[topic.name] = topic.count
        except REFUSALS as refused:
            wanted[topic.name] = refused.with_traceback(None)

    yield from call.each(call.body.topics, plan, cost=8)
    yield from prepared
    yield from _grow_all(call, wanted)


def _prepare(call: Call, topic: Any) -> Sequence[Later[None]]:
    demand(call.access, Operation.ALTER, Kind.TOPIC, topic.name)
    topics = call.context.broker.topics
    topics.grow(topic.name, topic.count, dry_run=True)
    count = topics.get(topic.name).partitions
    if topic.assignments is not None:
        _check_assignments(call, topic, count)
    if call.body.validate_only:
        return ()
    count_change(call, topic.count - count)
    return (topics.prepare(TopicSpec(name=topic.name, partitions=topic.count)),)


def _grow_all(call: Call, wanted: Mapping[str, int | Exception]) -> Steps[None]:
    """Grow what was prepared; `wanted` has the refusals of the others."""
    dry_run: bool = call.body.validate_only

    def grow(one: tuple[str, int | Exception]) -> dict[str, Any]:
        name, count = one
        flaw: Exception | None = None
        try:
            if isinstance(count, Exception):
                raise count
            call.context.broker.topics.grow(name, count, dry_run=dry_run)
        except REFUSALS as refused:
            flaw = refused
        return {"name": name, **error_fields(flaw)}

    results = yield from call.each(list(wanted.items()), grow, cost=STEP_COST)
    yield from answer_settled(call, {"results": results}, results, changed=not dry_run)


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


API = Api(37, "CreatePartitions", 0, 3, serve, finishes=True)

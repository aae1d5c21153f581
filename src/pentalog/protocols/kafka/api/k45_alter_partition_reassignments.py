"""AlterPartitionReassignments: put copies on other brokers; there are none.

v1 can forbid that the number of copies changes.
"""

from __future__ import annotations

from typing import Any

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import TopicNotFound
from pentalog.protocols.kafka.administration import error_fields
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import Denied, ErrorCode, Refused
from pentalog.protocols.kafka.messages import Api, Call, Steps


def serve(call: Call) -> Steps[None]:
    try:
        demand(call.access, Operation.ALTER, Kind.CLUSTER)
    except Denied as refusal:
        call.answer({**error_fields(refusal), "responses": []})
        return
    responses = []
    for topic in call.body.topics:

        def tell(part: Any, topic: str = topic.name) -> dict[str, Any]:
            flaw = _flaw(call, topic, part)
            return {"partition_index": part.partition_index, **error_fields(flaw)}

        parts = yield from call.each(topic.partitions, tell)
        responses.append({"name": topic.name, "partitions": parts})
    yield from call.reply(
        {
            "error_code": 0,
            "error_message": None,
            "allow_replication_factor_change": call.field("allow_replication_factor_change", True),
            "responses": responses,
        }
    )


def _flaw(call: Call, topic: str, part: Any) -> Refused | None:
    try:
        count = call.context.broker.topics.get(topic).partitions
    except TopicNotFound:
        count = 0
    at = f"{topic[:260]}-{part.partition_index}"
    if not 0 <= part.partition_index < count:
        return Refused(
            ErrorCode.unknown_topic_or_partition, f"there is no partition {at}: ask for metadata"
        )
    if part.replicas is None:
        return Refused(
            ErrorCode.no_reassignment_in_progress, f"{at} is not being moved: nothing to cancel"
        )
    node_id = call.context.config.node_id
    if list(part.replicas) == [node_id]:
        return None
    return Refused(
        ErrorCode.invalid_replica_assignment,
        f"{at} cannot be put on brokers {list(part.replicas)[:100]}: the only one is {node_id}",
    )


API = Api(45, "AlterPartitionReassignments", 0, 1, serve)

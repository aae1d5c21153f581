"""ElectLeaders: every partition has the only broker there is as its leader already.

v1 has the kind of election, and an error for the whole answer; v2 is flexible.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import TopicNotFound
from pentalog.protocols.kafka.administration import error_fields
from pentalog.protocols.kafka.authorization import refusal_of
from pentalog.protocols.kafka.errors import ErrorCode, Refused
from pentalog.protocols.kafka.messages import Api, Call, Steps

_KINDS: Final = (0, 1)
"""The preferred replica, or any that is there."""


def serve(call: Call) -> Steps[None]:
    if call.field("election_type", 0) not in _KINDS:
        call.answer({"error_code": int(ErrorCode.invalid_request), "replica_election_results": []})
        return
    asked = call.body.topic_partitions
    denied = refusal_of(call.access, Operation.ALTER, Kind.CLUSTER)
    if denied:
        refused = []
        for each in asked or ():
            parts = yield from call.each(
                each.partitions,
                lambda index: {"partition_id": index, "error_code": denied, "error_message": None},
            )
            refused.append({"topic": each.topic, "partition_result": parts})
        yield from call.reply({"error_code": denied, "replica_election_results": refused})
        return
    # Asked about all partitions, Kafka names only those where something was to be done.
    results = []
    for each in asked or ():
        result = yield from _result(call, each)
        results.append(result)
    yield from call.reply({"error_code": 0, "replica_election_results": results})


def _result(call: Call, asked: Any) -> Steps[dict[str, Any]]:
    try:
        count = call.context.broker.topics.get(asked.topic).partitions
    except TopicNotFound:
        count = 0

    def tell(index: int) -> dict[str, Any]:
        if 0 <= index < count:
            flaw = Refused(
                ErrorCode.election_not_needed,
                f"broker {call.context.config.node_id} leads {asked.topic}-{index} already",
            )
        else:
            flaw = Refused(
                ErrorCode.unknown_topic_or_partition,
                f"there is no partition {asked.topic[:260]}-{index}: ask for metadata",
            )
        return {"partition_id": index, **error_fields(flaw)}

    parts = yield from call.each(asked.partitions, tell)
    return {"topic": asked.topic, "partition_result": parts}


API = Api(43, "ElectLeaders", 0, 2, serve)

"""OffsetForLeaderEpoch: where an epoch of the log ended; ours has one epoch, 0, and it goes on.

2: throttle time first, current leader epoch.  3: replica id.  4: flexible.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.security import Operation
from pentalog.protocols.kafka.authorization import find
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused, code_of
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    call.answer(
        {
            "topics": [
                {
                    "topic": topic.topic,
                    "partitions": [
                        _partition(call, topic.topic, asked) for asked in topic.partitions
                    ],
                }
                for topic in call.body.topics
            ]
        }
    )


def _partition(call: Call, topic: str, asked: Any) -> dict[str, Any]:
    answer = {
        "error_code": 0,
        "partition": asked.partition,
        "leader_epoch": -1,
        "end_offset": -1,
    }
    try:
        at = find(
            call.access, call.door, topic.encode(), asked.partition, Operation.DESCRIBE, by_id=False
        )
        if asked.current_leader_epoch > 0:
            raise Refused(ErrorCode.unknown_leader_epoch, "the only leader epoch is 0")
        if asked.leader_epoch == 0:
            answer["leader_epoch"] = 0
            # Not the end: a consumer must never be told of more than a power cut leaves.
            answer["end_offset"] = call.context.broker.log.marks(at).durable
    except REFUSALS as refusal:
        answer["error_code"] = code_of(refusal)
    return answer


API: Final = Api(23, "OffsetForLeaderEpoch", 2, 4, serve)

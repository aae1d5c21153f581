"""OffsetForLeaderEpoch: where an epoch of the log ended; ours has one epoch, 0, and it goes on.

2: throttle time first, current leader epoch.  3: replica id.  4: flexible.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.security import Operation
from pentalog.model.types import Partition
from pentalog.protocols.kafka.administration import ends_of
from pentalog.protocols.kafka.authorization import find
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused, code_of
from pentalog.protocols.kafka.messages import Api, Call, Steps


def serve(call: Call) -> Steps[None]:
    topics: list[dict[str, Any]] = []
    found: list[tuple[dict[str, Any], Partition]] = []
    for topic in call.body.topics:

        def begin(asked: Any, topic: str = topic.topic) -> dict[str, Any]:
            answer = {
                "error_code": 0,
                "partition": asked.partition,
                "leader_epoch": -1,
                "end_offset": -1,
            }
            try:
                at = _find(call, topic, asked)
                if asked.leader_epoch == 0:
                    found.append((answer, at))
            except REFUSALS as refusal:
                answer["error_code"] = code_of(refusal)
            return answer

        answers = yield from call.each(topic.partitions, begin)
        topics.append({"topic": topic.topic, "partitions": answers})
    # The answer must survive a power cut and include every record a consumer may have read.
    ends = yield from ends_of(call, [at for _, at in found])

    def tell(one: tuple[dict[str, Any], Partition]) -> None:
        answer, at = one
        end = ends.get(at)
        if end is None:
            answer["error_code"] = int(ErrorCode.unknown_topic_or_partition)
        else:
            answer["leader_epoch"], answer["end_offset"] = 0, end

    yield from call.each(found, tell)
    yield from call.reply({"topics": topics})


def _find(call: Call, topic: str, asked: Any) -> Partition:
    index = asked.partition
    at = find(call.access, call.door, topic.encode(), index, Operation.DESCRIBE, by_id=False)
    if asked.current_leader_epoch > 0:
        raise Refused(ErrorCode.unknown_leader_epoch, "the only leader epoch is 0")
    return at


API: Final = Api(23, "OffsetForLeaderEpoch", 2, 4, serve)

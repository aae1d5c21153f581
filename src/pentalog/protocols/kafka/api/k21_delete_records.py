"""DeleteRecords: give up everything before an offset; -1 stands for all that can be read now.

v1 throttles before it answers; v2 is flexible.
"""

from __future__ import annotations

from typing import Any

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import OffsetOutOfRange
from pentalog.model.types import Partition
from pentalog.protocols.kafka.administration import error_fields
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    call.answer(
        {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [_trimmed(call, topic.name, each) for each in topic.partitions],
                }
                for topic in call.body.topics
            ]
        }
    )


def _trimmed(call: Call, topic: str, asked: Any) -> dict[str, Any]:
    low_watermark = -1
    flaw: Exception | None = None
    try:
        demand(call.access, Operation.DELETE, Kind.TOPIC, topic)
        low_watermark = _trim(call, Partition(topic, asked.partition_index), asked.offset)
    except REFUSALS as refusal:
        flaw = refusal
    return {
        "partition_index": asked.partition_index,
        "low_watermark": low_watermark,
        "error_code": error_fields(flaw)["error_code"],
    }


def _trim(call: Call, at: Partition, before: int) -> int:
    broker = call.context.broker
    settings = broker.topics.get(at.topic).settings
    marks = broker.log.marks(at)
    if settings.cleanup_compact and not settings.cleanup_delete:
        raise Refused(ErrorCode.policy_violation, f"{at} is compacted: it forgets by key only")
    if before == -1:
        before = marks.durable
    if not 0 <= before <= marks.durable:
        raise OffsetOutOfRange(
            f"{at} can be trimmed up to {marks.durable}, not {before}",
            start=marks.start,
            end=marks.durable,
        )
    return broker.topics.trim(at, before) if before > marks.start else marks.start


API = Api(21, "DeleteRecords", 0, 2, serve)

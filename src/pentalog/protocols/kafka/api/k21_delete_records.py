"""DeleteRecords: give up everything before an offset; -1 stands for all that can be read now.

v1 throttles before it answers; v2 is flexible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import OffsetOutOfRange, PartitionNotFound
from pentalog.model.later import Later
from pentalog.model.types import Offset, Partition
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused, code_of
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    topics: list[dict[str, Any]] = []
    allowed: list[tuple[dict[str, Any], Partition, int]] = []
    for topic in call.body.topics:
        answers = []
        for asked in topic.partitions:
            answer = {"partition_index": asked.partition_index, "low_watermark": -1}
            answers.append(answer)
            try:
                demand(call.access, Operation.DELETE, Kind.TOPIC, topic.name)
                at = Partition(topic.name, asked.partition_index)
                allowed.append((answer, at, asked.offset))
            except REFUSALS as refusal:
                answer["error_code"] = code_of(refusal)
        topics.append({"name": topic.name, "partitions": answers})
    # Only durable records can be deleted, and every acknowledged one must be deletable.
    ends = call.context.broker.log.ends({at for _, at, _ in allowed})
    call.when_all([ends], lambda kept: _delete(kept, topics, allowed, ends.value))


def _delete(
    call: Call,
    topics: list[dict[str, Any]],
    allowed: Sequence[tuple[dict[str, Any], Partition, int]],
    ends: Mapping[Partition, Offset],
) -> None:
    for answer, at, before in allowed:
        try:
            if at not in ends:
                raise PartitionNotFound(f"there is no partition {at}")
            answer["low_watermark"] = _trim(call, at, before, ends[at])
        except REFUSALS as refusal:
            answer["error_code"] = code_of(refusal)
    settled = call.context.broker.topics.settle()
    answers = [answer for answer, _, _ in allowed if "error_code" not in answer]
    call.when_all([settled], lambda kept: _answer(kept, topics, answers, settled))


def _answer(
    call: Call,
    topics: list[dict[str, Any]],
    answers: list[dict[str, Any]],
    settled: Later[None],
) -> None:
    """Answer when a power cut could not bring the deleted records back."""
    try:
        _ = settled.value
    except REFUSALS as refusal:
        for answer in answers:
            answer |= {"low_watermark": -1, "error_code": code_of(refusal)}
    call.answer({"topics": topics})


def _trim(call: Call, at: Partition, before: Offset, end: Offset) -> Offset:
    broker = call.context.broker
    settings = broker.topics.get(at.topic).settings
    start = broker.log.marks(at).start
    if settings.cleanup_compact and not settings.cleanup_delete:
        raise Refused(ErrorCode.policy_violation, f"{at} is compacted: it forgets by key only")
    if before == -1:
        before = end
    if not 0 <= before <= end:
        raise OffsetOutOfRange(
            f"{at} can be trimmed up to {end}, not {before}", start=start, end=end
        )
    return broker.topics.trim(at, before) if before > start else start


API = Api(21, "DeleteRecords", 0, 2, serve)

"""DeleteRecords: give up everything before an offset; -1 stands for all that can be read now.

v1 throttles before it answers; v2 is flexible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import OffsetOutOfRange, PartitionNotFound
from pentalog.model.types import Offset, Partition
from pentalog.protocols.kafka.administration import ends_of
from pentalog.protocols.kafka.authorization import refusal_of
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused, code_of
from pentalog.protocols.kafka.messages import Api, Call, Steps

_TRIM_COST: Final = 8


def serve(call: Call) -> Steps[None]:
    # As in Kafka, the last offset counts for a partition that is named again.
    wanted: dict[str, dict[int, Offset]] = {}

    def join(topic: Any) -> None:
        indexes = wanted.setdefault(topic.name, {})
        indexes.update((asked.partition_index, asked.offset) for asked in topic.partitions)

    yield from call.each(call.body.topics, join)
    topics: list[dict[str, Any]] = []
    allowed: list[tuple[dict[str, Any], Partition, int]] = []
    for name, indexes in wanted.items():
        denied = refusal_of(call.access, Operation.DELETE, Kind.TOPIC, name)

        def begin(asked: tuple[int, Offset], name: str = name, denied: int = denied) -> Any:
            index, offset = asked
            answer = {"partition_index": index, "low_watermark": -1, "error_code": denied}
            if not denied:
                allowed.append((answer, Partition(name, index), offset))
            return answer

        answers = yield from call.each(list(indexes.items()), begin)
        topics.append({"name": name, "partitions": answers})
    # Only durable records can be deleted, and every acknowledged one must be deletable.
    ends = yield from ends_of(call, [at for _, at, _ in allowed])
    yield from _delete(call, allowed, ends)
    yield from call.reply({"topics": topics})


def _delete(
    call: Call,
    allowed: Sequence[tuple[dict[str, Any], Partition, int]],
    ends: Mapping[Partition, Offset],
) -> Steps[None]:
    """Delete, and wait until a power cut could not bring the records back."""

    def trim(one: tuple[dict[str, Any], Partition, int]) -> None:
        answer, at, before = one
        try:
            if at not in ends:
                raise PartitionNotFound(f"there is no partition {at}")
            answer["low_watermark"] = _trim(call, at, before, ends[at])
        except REFUSALS as refusal:
            answer["error_code"] = code_of(refusal)

    yield from call.each(allowed, trim, cost=_TRIM_COST)
    settled = call.context.broker.topics.settle()
    yield settled
    try:
        settled.check()
    except REFUSALS as refusal:
        for answer, _, _ in allowed:
            if not answer["error_code"]:
                answer |= {"low_watermark": -1, "error_code": code_of(refusal)}


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


API = Api(21, "DeleteRecords", 0, 2, serve, finishes=True)

"""OffsetDelete: drop offsets of topics that no member of the group reads."""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError
from pentalog.model.types import Partition
from pentalog.protocols.kafka.authorization import demand, find
from pentalog.protocols.kafka.coordination import group_code
from pentalog.protocols.kafka.errors import REFUSALS, code_of
from pentalog.protocols.kafka.messages import Api, Call, Steps, portions


def serve(call: Call) -> Steps[None]:
    codes: dict[Partition, int] = {}
    for topic in call.body.topics:

        def look_up(partition: Any, topic: str = topic.name) -> None:
            at = Partition(topic, partition.partition_index)
            codes[at] = _missing(call, at)

        yield from call.each(topic.partitions, look_up)
    groups = call.context.broker.groups
    try:
        demand(call.access, Operation.DELETE, Kind.GROUP, call.body.group_id)
        there = [at for at, code in codes.items() if not code]
        for some in portions(there):
            for at, refusal in groups.forget(call.body.group_id, some).items():
                codes[at] = group_code(refusal)
            if len(some) < len(there):
                yield None
    except BrokerError as refusal:
        call.answer({"error_code": group_code(refusal), "topics": []})
        return
    settled = groups.settle()
    yield settled
    try:
        settled.check()
    except BrokerError as refusal:
        call.answer({"error_code": group_code(refusal), "topics": []})
        return
    yield from _answer(call, codes)


def _missing(call: Call, at: Partition) -> int:
    try:
        find(call.access, call.door, at.topic.encode(), at.index, Operation.READ, by_id=False)
    except REFUSALS as refusal:
        return code_of(refusal)
    return 0


def _answer(call: Call, codes: dict[Partition, int]) -> Steps[None]:
    topics = []
    for topic in call.body.topics:

        def tell(partition: Any, topic: str = topic.name) -> dict[str, int]:
            index = partition.partition_index
            return {"partition_index": index, "error_code": codes[Partition(topic, index)]}

        parts = yield from call.each(topic.partitions, tell)
        topics.append({"name": topic.name, "partitions": parts})
    yield from call.reply({"error_code": 0, "topics": topics})


API: Final = Api(47, "OffsetDelete", 0, 0, serve, finishes=True)

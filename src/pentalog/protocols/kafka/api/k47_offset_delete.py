"""OffsetDelete: drop offsets of topics that no member of the group reads."""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.model.types import Partition
from pentalog.protocols.kafka.authorization import demand, find
from pentalog.protocols.kafka.coordination import answer_when_there, group_code
from pentalog.protocols.kafka.errors import REFUSALS, code_of
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    codes: dict[Partition, int] = {}
    for topic in call.body.topics:
        for partition in topic.partitions:
            at = Partition(topic.name, partition.partition_index)
            codes[at] = _missing(call, at)
    groups = call.context.broker.groups
    try:
        demand(call.access, Operation.DELETE, Kind.GROUP, call.body.group_id)
        there = [at for at, code in codes.items() if not code]
        for at, refusal in groups.forget(call.body.group_id, there).items():
            codes[at] = group_code(refusal)
    except BrokerError as refusal:
        call.answer({"error_code": group_code(refusal), "topics": []})
        return
    answer_when_there(call, groups.settle(), lambda settled: _fields(call, codes, settled))


def _missing(call: Call, at: Partition) -> int:
    try:
        find(call.access, call.door, at.topic.encode(), at.index, Operation.READ, by_id=False)
    except REFUSALS as refusal:
        return code_of(refusal)
    return 0


def _fields(call: Call, codes: dict[Partition, int], settled: Later[None]) -> dict[str, Any]:
    try:
        _ = settled.value
    except BrokerError as refusal:
        return {"error_code": group_code(refusal), "topics": []}
    return {
        "error_code": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "error_code": codes[Partition(topic.name, partition.partition_index)],
                    }
                    for partition in topic.partitions
                ],
            }
            for topic in call.body.topics
        ],
    }


API: Final = Api(47, "OffsetDelete", 0, 0, serve)

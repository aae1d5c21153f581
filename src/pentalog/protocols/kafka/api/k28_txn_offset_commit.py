"""TxnOffsetCommit: offsets of a group that become real when the transaction commits.

2: leader epochs.  3: flexible, and the member is checked.  4: abortable errors.  5: the group
takes part without having been added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pentalog.broker.port import Committed, Fence
from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError, TopicNotFound, Unauthorized
from pentalog.model.later import Later
from pentalog.model.types import Identity, Partition
from pentalog.protocols.kafka.authorization import demand, refusal_of
from pentalog.protocols.kafka.errors import ErrorCode, code_of
from pentalog.protocols.kafka.messages import Api, Call, Steps, portions

_IMPLICIT: Final = 5
_METADATA_BYTES_MAX: Final = 4096


def serve(call: Call) -> Steps[None]:
    codes: dict[Partition, int] = {}
    offsets: dict[Partition, Committed] = {}
    for topic in call.body.topics:

        def take(part: Any, topic: str = topic.name) -> None:
            at = Partition(topic, part.partition_index)
            codes[at] = _flaw(call, at, part)
            if not codes[at]:
                offsets[at] = Committed(
                    part.committed_offset,
                    getattr(part, "committed_leader_epoch", -1),
                    part.committed_metadata or "",
                )

        yield from call.each(topic.partitions, take)
    written: list[Later[None]] = []
    try:
        for some in portions(list(offsets.items())):
            if written:
                yield None
            written.append(_stage(call, dict(some)))
        for staged in written:
            yield staged
            staged.check()
    except BrokerError as refusal:
        refused = codes if isinstance(refusal, Unauthorized) else offsets
        codes |= dict.fromkeys(refused, code_of(refusal))
    yield from _answer(call, codes)


def _stage(call: Call, offsets: Mapping[Partition, Committed]) -> Later[None]:
    body, broker = call.body, call.context.broker
    demand(call.access, Operation.WRITE, Kind.TRANSACTION, body.transactional_id)
    demand(call.access, Operation.READ, Kind.GROUP, body.group_id)
    if not offsets:
        return Later.now(None)
    fence = Fence(
        call.field("member_id", ""),
        call.field("generation_id", -1),
        call.field("group_instance_id", None),
    )
    broker.groups.check_commit(body.group_id, fence, transactional=True)
    return broker.transactions.stage(
        body.transactional_id,
        Identity(body.producer_id, body.producer_epoch),
        body.group_id,
        offsets,
        enlists=call.version >= _IMPLICIT,
    )


def _flaw(call: Call, at: Partition, part: Any) -> int:
    denied = refusal_of(call.access, Operation.READ, Kind.TOPIC, at.topic)
    if denied:
        return denied
    if len((part.committed_metadata or "").encode()) > _METADATA_BYTES_MAX:
        return int(ErrorCode.offset_metadata_too_large)
    try:
        if 0 <= at.index < call.context.broker.topics.get(at.topic).partitions:
            return 0
    except TopicNotFound:
        pass
    return int(ErrorCode.unknown_topic_or_partition)


def _answer(call: Call, codes: Mapping[Partition, int]) -> Steps[None]:
    topics = []
    for topic in call.body.topics:

        def tell(part: Any, topic: str = topic.name) -> dict[str, int]:
            index = part.partition_index
            return {"partition_index": index, "error_code": codes[Partition(topic, index)]}

        parts = yield from call.each(topic.partitions, tell)
        topics.append({"name": topic.name, "partitions": parts})
    yield from call.reply({"topics": topics})


API: Final = Api(28, "TxnOffsetCommit", 0, 5, serve, finishes=True)

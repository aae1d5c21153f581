"""OffsetCommit: where a group goes on; answered when it is on the disk.

3: throttle time.  5: no retention time any more.  6: leader epochs.  7: static members.  8:
flexible.  9: members of groups that the broker plans, which commit with their epoch.  10: topics
by their ids.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.port import Committed, Fence
from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.model.types import Partition
from pentalog.protocols.kafka.authorization import find, refusal_of
from pentalog.protocols.kafka.codec import milliseconds
from pentalog.protocols.kafka.commits import CommitPartition, decode_steps, encode
from pentalog.protocols.kafka.coordination import group_code
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, code_of
from pentalog.protocols.kafka.messages import Api, Call, Steps, portions

METADATA_MAX: Final = 4096


def serve(call: Call) -> Steps[None]:
    body = call.body
    expire_ms = _expire_ms(call)
    offsets: dict[Partition, Committed] = {}
    topics: list[dict[str, Any]] = []
    taken: list[dict[str, Any]] = []
    denied = refusal_of(call.access, Operation.READ, Kind.GROUP, body.group_id)
    for topic in body.topics:
        by_id = call.version >= 10
        wire = (topic.topic_id.bytes if topic.topic_id else bytes(16)) if by_id else None
        wire = topic.name.encode() if wire is None else wire

        def take(
            partition: CommitPartition, wire: bytes = wire, by_id: bool = by_id
        ) -> dict[str, Any]:
            index, offset, epoch, metadata = partition
            result = {"partition_index": index, "error_code": denied}
            if denied:
                return result
            try:
                at = find(call.access, call.door, wire, index, Operation.READ, by_id=by_id)
            except REFUSALS as refusal:
                result["error_code"] = code_of(refusal)
                return result
            if metadata is not None and len(metadata) > METADATA_MAX:
                result["error_code"] = int(ErrorCode.offset_metadata_too_large)
                return result
            offsets[at] = Committed(offset, epoch, metadata or "", expire_ms=expire_ms)
            taken.append(result)
            return result

        partitions = yield from call.each(topic.partitions, take)
        topics.append(
            {
                "name": getattr(topic, "name", None),
                "topic_id": getattr(topic, "topic_id", None),
                "partitions": partitions,
            }
        )
    if offsets:
        yield from _commit(call, offsets, taken)
    call.send((yield from encode(call.version, call.correlation_id, topics)))


def _commit(
    call: Call, offsets: dict[Partition, Committed], taken: list[dict[str, Any]]
) -> Steps[None]:
    body = call.body
    fence = Fence(
        body.member_id,
        body.generation_id_or_member_epoch,
        call.field("group_instance_id", None),
    )
    written: list[Later[None]] = []
    try:
        for some in portions(list(offsets.items())):
            if written:
                yield None
            written.append(
                call.context.broker.groups.commit(
                    body.group_id,
                    fence,
                    dict(some),
                    epoch_aware=call.version >= 9,
                    owner=call.access.owner,
                )
            )
        for later in written:
            yield later
            later.check()
    except BrokerError as refusal:
        # Told of all of them: who commits again changes nothing about those that are written.
        code = group_code(refusal)
        yield from call.each(taken, lambda result: result.update(error_code=code))


def _expire_ms(call: Call) -> int:
    if call.version >= 5:
        return -1
    retention_ms = milliseconds(call.body.retention_time)
    return -1 if retention_ms < 0 else call.context.runtime.now_ms() + retention_ms


API: Final = Api(8, "OffsetCommit", 2, 10, serve, decode_steps=decode_steps, finishes=True)

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
from pentalog.protocols.kafka.commits import decode, encode
from pentalog.protocols.kafka.coordination import group_code
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, code_of
from pentalog.protocols.kafka.messages import Api, Call

METADATA_MAX: Final = 4096


def serve(call: Call) -> None:
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
        partitions = []
        for partition in topic.partitions:
            result = {"partition_index": partition.partition_index, "error_code": 0}
            partitions.append(result)
            if denied:
                result["error_code"] = denied
                continue
            index = partition.partition_index
            try:
                at = find(call.access, call.door, wire, index, Operation.READ, by_id=by_id)
            except REFUSALS as refusal:
                result["error_code"] = code_of(refusal)
                continue
            metadata = partition.committed_metadata or ""
            if len(metadata) > METADATA_MAX:
                result["error_code"] = int(ErrorCode.offset_metadata_too_large)
                continue
            epoch = getattr(partition, "committed_leader_epoch", -1)
            offsets[at] = Committed(
                partition.committed_offset, epoch, metadata, expire_ms=expire_ms
            )
            taken.append(result)
        topics.append(
            {
                "name": getattr(topic, "name", None),
                "topic_id": getattr(topic, "topic_id", None),
                "partitions": partitions,
            }
        )
    if not offsets:
        _answer(call, topics)
        return
    _commit(call, offsets, topics, taken)


def _commit(
    call: Call,
    offsets: dict[Partition, Committed],
    topics: list[dict[str, Any]],
    taken: list[dict[str, Any]],
) -> None:
    body = call.body
    fence = Fence(
        body.member_id,
        body.generation_id_or_member_epoch,
        call.field("group_instance_id", None),
    )

    def refuse(refusal: BrokerError) -> None:
        code = group_code(refusal)
        for result in taken:
            result["error_code"] = code

    def settled(done: Later[None]) -> bytearray:
        try:
            _ = done.value
        except BrokerError as refusal:
            refuse(refusal)
        return encode(call.version, call.correlation_id, topics)

    try:
        later = call.context.broker.groups.commit(
            body.group_id,
            fence,
            offsets,
            epoch_aware=call.version >= 9,
            owner=call.access.owner,
        )
    except BrokerError as refusal:
        refuse(refusal)
        _answer(call, topics)
        return
    if later.ready:
        call.line.send(settled(later))
        return
    place = call.line.place()
    later.then(lambda done: place.fill(settled(done)))


def _answer(call: Call, topics: list[dict[str, Any]]) -> None:
    call.line.send(encode(call.version, call.correlation_id, topics))


def _expire_ms(call: Call) -> int:
    if call.version >= 5:
        return -1
    retention_ms = milliseconds(call.body.retention_time)
    return -1 if retention_ms < 0 else call.context.runtime.now_ms() + retention_ms


API: Final = Api(8, "OffsetCommit", 2, 10, serve, decode=decode)

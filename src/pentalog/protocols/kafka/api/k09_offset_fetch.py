"""OffsetFetch: where groups go on; answered when what is found is on the disk.

2: no topics means all, and an error for the group.  3: throttle time.  5: leader epochs.  6:
flexible.  7: offsets in open transactions are an error if the client asks so.  8: several groups
at a time.  9: members of groups that the broker plans say who they are.  10: topics by their ids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from pentalog.broker.port import Committed, Fence
from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError, TopicNotFound
from pentalog.model.kafka_names import is_carried
from pentalog.model.later import Later
from pentalog.model.types import Partition
from pentalog.protocols.kafka.authorization import demand, refusal_of
from pentalog.protocols.kafka.coordination import group_code
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.messages import Api, Call, Steps

_INDEX_MAX: Final = (1 << 31) - 1
_NOTHING: Final[Mapping[str, Any]] = {
    "committed_offset": -1,
    "committed_leader_epoch": -1,
    "metadata": "",
    "error_code": 0,
}


class Found(NamedTuple):
    """The answer for one group, to be sent once it is durable."""

    answer: dict[str, Any]
    settled: Later[None]


def serve(call: Call) -> Steps[None]:
    body = call.body
    if call.version < 8:
        one = yield from _group(call, body.group_id, body.topics, Fence())
        yield one.settled
        answer = yield from _durable(call, one)
        if call.version < 2 and answer["error_code"]:
            answer["topics"] = yield from _refused(call, body.topics or (), answer["error_code"])
        yield from call.reply(answer)
        return
    found = []
    for asked in _joined(body.groups):
        member = Fence(getattr(asked, "member_id", None) or "", getattr(asked, "member_epoch", -1))
        found.append((yield from _group(call, asked.group_id, asked.topics, member)))
        yield None
    groups = []
    for one in found:
        yield one.settled
        groups.append((yield from _durable(call, one)))
    yield from call.reply({"groups": groups})


def _joined(groups: Sequence[Any]) -> list[Any]:
    """Leave out groups that are asked for all their offsets again."""
    kept = []
    whole = set()
    for asked in groups:
        if asked.topics is None:
            if asked.group_id in whole:
                continue
            whole.add(asked.group_id)
        kept.append(asked)
    return kept


def _durable(call: Call, found: Found) -> Steps[dict[str, Any]]:
    """What was found, or an error if it is not on the disk."""
    answer = found.answer
    try:
        found.settled.check()
    except BrokerError as refusal:
        if not call.field("require_stable", False):
            return _group_refused(answer["group_id"], refusal)
        # The error this client asks for if an offset may still change; consumers retry it.
        for topic in answer["topics"]:
            topic["partitions"] = yield from call.each(
                topic["partitions"],
                lambda part: part if part["error_code"] else _unstable(part["partition_index"]),
            )
    return answer


def _group(call: Call, group: str, asked: Any, fence: Fence) -> Steps[Found]:
    groups = call.context.broker.groups
    try:
        demand(call.access, Operation.DESCRIBE, Kind.GROUP, group)
        groups.check_fetch(group, fence)
    except BrokerError as refusal:
        return Found(_group_refused(group, refusal), Later.now(None))
    topics = []
    if asked is None:
        topics = yield from _all(call, group)
    else:
        for topic in asked:
            topics.append((yield from _topic(call, group, topic)))
    answer = {"group_id": group, "topics": topics, "error_code": 0}
    return Found(answer, groups.offsets.settled(group))


def _group_refused(group: str, refusal: BrokerError) -> dict[str, Any]:
    code = group_code(refusal)
    if code == ErrorCode.coordinator_not_available:
        # As Kafka answers this request: older consumers treat NOT_AVAILABLE as fatal here.
        code = int(ErrorCode.not_coordinator)
    return {"group_id": group, "topics": [], "error_code": code}


def _all(call: Call, group: str) -> Steps[list[dict[str, Any]]]:
    by_topic: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def add(entry: tuple[Partition, Committed]) -> None:
        at, committed = entry
        if at.index <= _INDEX_MAX and is_carried(at.topic):
            by_topic[at.topic].append(_partition(call, group, at, committed))

    yield from call.each(call.context.broker.groups.offsets.walk(group), add)
    seen = yield from call.each(list(by_topic), lambda name: _seen(call, name))
    return [{**topic, "partitions": by_topic[topic["name"]]} for topic in seen if topic is not None]


def _seen(call: Call, name: str) -> dict[str, Any] | None:
    """Return a topic that the client may be told of."""
    if not call.access.sees(Kind.TOPIC, name):
        return None
    topic_id: UUID | None = None
    if call.version >= 10:
        try:
            topic_id = call.context.broker.topics.get(name).topic_id
        except TopicNotFound:
            return None
    return {"name": name, "topic_id": topic_id}


def _topic(call: Call, group: str, asked: Any) -> Steps[dict[str, Any]]:
    topic_id = getattr(asked, "topic_id", None)
    if call.version < 10:
        name = asked.name
    else:
        try:
            name = call.context.broker.topics.by_id(topic_id or UUID(int=0)).name
        except TopicNotFound:
            return (yield from _refused(call, [asked], int(ErrorCode.unknown_topic_id)))[0]
    denied = refusal_of(call.access, Operation.DESCRIBE, Kind.TOPIC, name)
    if denied:
        return (yield from _refused(call, [asked], denied))[0]
    offsets = call.context.broker.groups.offsets

    def look_up(index: int) -> dict[str, Any]:
        at = Partition(name, index)
        return _partition(call, group, at, offsets.committed(group, (at,)).get(at))

    partitions = yield from call.each(asked.partition_indexes, look_up)
    return {"name": name, "topic_id": topic_id, "partitions": partitions}


def _partition(
    call: Call, group: str, at: Partition, committed: Committed | None
) -> dict[str, Any]:
    unstable = call.field("require_stable", False) and call.context.broker.groups.offsets.unstable(
        group, at
    )
    if unstable:
        return _unstable(at.index)
    if committed is None:
        return {**_NOTHING, "partition_index": at.index}
    return {
        "partition_index": at.index,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": 0,
    }


def _unstable(index: int) -> dict[str, Any]:
    code = int(ErrorCode.unstable_offset_commit)
    return {**_NOTHING, "partition_index": index, "error_code": code}


def _refused(call: Call, asked: Any, code: int) -> Steps[list[dict[str, Any]]]:
    refused = []
    for topic in asked:
        partitions = yield from call.each(
            topic.partition_indexes,
            lambda index: {**_NOTHING, "partition_index": index, "error_code": code},
        )
        refused.append(
            {
                "name": getattr(topic, "name", None),
                "topic_id": getattr(topic, "topic_id", None),
                "partitions": partitions,
            }
        )
    return refused


API: Final = Api(9, "OffsetFetch", 1, 10, serve)

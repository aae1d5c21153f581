"""ConsumerGroupDescribe: groups that the broker plans, with their epochs and plans."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final
from uuid import UUID

from pentalog.broker.port import ConsumerView, Topics
from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError, TopicNotFound
from pentalog.protocols.kafka.administration import OPERATIONS_NOT_ASKED
from pentalog.protocols.kafka.authorization import demand, operations_on
from pentalog.protocols.kafka.codec import Made
from pentalog.protocols.kafka.coordination import group_code
from pentalog.protocols.kafka.messages import Api, Call, Steps

_CLASSIC: Final = 0
_CONSUMER: Final = 1


def serve(call: Call) -> Steps[None]:
    # A group that is named again is answered once.
    names = list(dict.fromkeys(call.body.group_ids))
    return call.reply({"groups": Made(names, lambda name: _described(call, name), at_once=4)})


def _described(call: Call, name: str) -> dict[str, Any]:
    broker = call.context.broker
    operations = OPERATIONS_NOT_ASKED
    if call.body.include_authorized_operations:
        operations = operations_on(call.access, Kind.GROUP, name)
    try:
        demand(call.access, Operation.DESCRIBE, Kind.GROUP, name)
        group = broker.consumers.view(name)
        for topic in sorted({topic for member in group.members for topic in member.topics}):
            demand(call.access, Operation.DESCRIBE, Kind.TOPIC, topic)
    except BrokerError as refusal:
        return {
            "error_code": group_code(refusal),
            "error_message": str(refusal),
            "group_id": name,
            "group_state": "",
            "group_epoch": 0,
            "assignment_epoch": 0,
            "assignor_name": "",
            "members": [],
        }
    return {
        "error_code": 0,
        "group_id": name,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.plan_epoch,
        "assignor_name": group.assignor,
        "members": [_member(member, broker.topics) for member in group.members],
        "authorized_operations": operations,
    }


def _member(member: ConsumerView, topics: Topics) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.topics),
        "subscribed_topic_regex": member.pattern or None,
        "assignment": _assignment(member.held, topics),
        "target_assignment": _assignment(member.target, topics),
        "member_type": _CLASSIC if member.classic else _CONSUMER,
    }


def _assignment(share: Mapping[UUID, Collection[int]], topics: Topics) -> dict[str, Any]:
    found = []
    for topic_id, indexes in share.items():
        try:
            name = topics.by_id(topic_id).name
        except TopicNotFound:
            continue
        found.append({"topic_id": topic_id, "topic_name": name, "partitions": sorted(indexes)})
    return {"topic_partitions": found}


API = Api(69, "ConsumerGroupDescribe", 0, 1, serve)

"""JoinGroup: be in the next generation of a group; answered when it is complete.

1: how long a rebalance may take.  2: throttle time.  4: new members are told their id first.
5: static members.  6: flexible.  7: protocol type in the answer.  8: a reason.  9: a static
leader that comes back may be told not to plan.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.port import Joined, Joining, Proposal
from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError, GroupFull, GroupInconsistent, MemberIdRequired
from pentalog.model.later import Later
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.codec import milliseconds
from pentalog.protocols.kafka.coordination import (
    PROTOCOLS_MAX,
    TOPICS_MAX,
    answer_when_there,
    client_host,
    group_code,
    subscribed_topics,
)
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    body = call.body
    try:
        demand(call.access, Operation.READ, Kind.GROUP, body.group_id)
        later = call.context.broker.groups.join(body.group_id, _joining(call))
    except BrokerError as refusal:
        call.answer(_refused(call, refusal))
        return
    answer_when_there(call, later, lambda done: _fields(call, done))


def _joining(call: Call) -> Joining:
    body = call.body
    session_timeout_ms = milliseconds(body.session_timeout)
    rebalance_timeout_ms = -1 if call.version < 1 else milliseconds(body.rebalance_timeout)
    return Joining(
        member_id=body.member_id,
        instance_id=call.field("group_instance_id", None),
        client_id=call.client_id or "",
        client_host=client_host(call),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=(
            rebalance_timeout_ms if rebalance_timeout_ms >= 0 else session_timeout_ms
        ),
        protocol_type=body.protocol_type,
        proposals=_proposals(call),
        id_required=call.version >= 4,
        plan_skippable=call.version >= 9,
        reason=call.field("reason", None) or "",
        owner=call.access.owner,
    )


def _proposals(call: Call) -> tuple[Proposal, ...]:
    body, left = call.body, TOPICS_MAX
    if len(body.protocols) > PROTOCOLS_MAX:
        raise GroupInconsistent(
            f"{len(body.protocols)} protocols; a member may propose {PROTOCOLS_MAX}"
        )
    size = sum(len(protocol.metadata) for protocol in body.protocols)
    understood = size <= call.context.config.group_member_bytes_max
    found = []
    for protocol in body.protocols:
        topics = None
        if understood:
            topics = subscribed_topics(body.protocol_type, protocol.metadata, left)
            left -= len(topics or ())
        found.append(Proposal(protocol.name, bytes(protocol.metadata), topics))
    return tuple(found)


def _fields(call: Call, done: Later[Joined]) -> dict[str, Any]:
    try:
        joined = done.value
    except BrokerError as refusal:
        return _refused(call, refusal)
    return {
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol or "",
        "leader": joined.leader,
        "skip_assignment": joined.skip_plan,
        "member_id": joined.member_id,
        "members": [
            {
                "member_id": candidate.member_id,
                "group_instance_id": candidate.instance_id,
                "metadata": candidate.metadata,
            }
            for candidate in joined.candidates
        ],
    }


def _refused(call: Call, refusal: BrokerError) -> dict[str, Any]:
    member_id = call.body.member_id
    if isinstance(refusal, MemberIdRequired):
        member_id = refusal.member_id
    elif isinstance(refusal, GroupFull):
        member_id = ""
    return {
        "error_code": group_code(refusal),
        "generation_id": -1,
        "protocol_type": None,
        "protocol_name": None if call.version >= 7 else "",
        "leader": "",
        "member_id": member_id,
        "members": [],
    }


API: Final = Api(11, "JoinGroup", 0, 9, serve)

"""SyncGroup: the leader brings its plan, everybody gets its part when the plan is on the disk.

1: throttle time.  3: static members.  4: flexible.  5: protocol type and name, checked.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.port import Fence, Synced
from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.coordination import answer_when_there, group_code
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    body = call.body
    try:
        demand(call.access, Operation.READ, Kind.GROUP, body.group_id)
        later = call.context.broker.groups.sync(
            body.group_id,
            Fence(body.member_id, body.generation_id, call.field("group_instance_id", None)),
            {part.member_id: bytes(part.assignment) for part in body.assignments},
            protocol_type=call.field("protocol_type", None),
            protocol=call.field("protocol_name", None),
        )
    except BrokerError as refusal:
        call.answer(_refused(refusal))
        return
    answer_when_there(call, later, _fields)


def _fields(done: Later[Synced]) -> dict[str, Any]:
    try:
        synced = done.value
    except BrokerError as refusal:
        return _refused(refusal)
    return {
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }


def _refused(refusal: BrokerError) -> dict[str, Any]:
    return {"error_code": group_code(refusal), "assignment": b""}


API: Final = Api(14, "SyncGroup", 0, 5, serve)

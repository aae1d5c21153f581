"""DescribeGroups: members, their metadata and their parts of the plan, of leader-planned groups.

1: throttle time.  3: operations the client may do.  4: static members.  5: flexible.  6: a group
that does not exist is an error, not a dead group.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError, GroupNotFound, Unauthorized
from pentalog.protocols.kafka.administration import OPERATIONS_NOT_ASKED
from pentalog.protocols.kafka.authorization import demand, operations_on
from pentalog.protocols.kafka.codec import Made
from pentalog.protocols.kafka.coordination import group_code
from pentalog.protocols.kafka.messages import Api, Call, Steps


def serve(call: Call) -> Steps[None]:
    # A group that is named again is answered once.
    names = list(dict.fromkeys(call.body.groups))
    return call.reply({"groups": Made(names, lambda name: _group(call, name), at_once=4)})


def _group(call: Call, name: str) -> dict[str, Any]:
    try:
        demand(call.access, Operation.DESCRIBE, Kind.GROUP, name)
        view = call.context.broker.groups.view(name)
        if view.kind != "classic":
            raise GroupNotFound(
                f"group {name!r} is planned by the broker: describe it by ConsumerGroupDescribe"
            )
    except BrokerError as refusal:
        return _refused(call, name, refusal)
    return {
        "error_code": 0,
        "group_id": name,
        "group_state": view.state,
        "protocol_type": view.protocol_type,
        "protocol_data": view.protocol,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in view.members
        ],
        "authorized_operations": _operations(call, name),
    }


def _operations(call: Call, name: str) -> int:
    if not call.field("include_authorized_operations", False):
        return OPERATIONS_NOT_ASKED
    return operations_on(call.access, Kind.GROUP, name)


def _refused(call: Call, name: str, refusal: BrokerError) -> dict[str, Any]:
    silent = call.version < 6 and isinstance(refusal, GroupNotFound)
    return {
        "error_code": 0 if silent else group_code(refusal),
        "error_message": str(refusal),
        "group_id": name,
        "group_state": "Dead" if isinstance(refusal, GroupNotFound) else "",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
        "authorized_operations": OPERATIONS_NOT_ASKED
        if isinstance(refusal, Unauthorized)
        else _operations(call, name),
    }


API: Final = Api(15, "DescribeGroups", 0, 6, serve)

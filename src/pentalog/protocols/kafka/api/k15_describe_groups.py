"""DescribeGroups: members, their metadata and their parts of the plan, of leader-planned groups.

1: throttle time.  3: operations the client may do.  4: static members.  5: flexible.  6: a group
that does not exist is an error, not a dead group.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.model.errors import BrokerError, GroupNotFound
from pentalog.protocols.kafka.administration import OPERATIONS_NOT_ASKED
from pentalog.protocols.kafka.coordination import GROUP_OPERATIONS, group_code
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    operations = OPERATIONS_NOT_ASKED
    if call.field("include_authorized_operations", False):
        operations = GROUP_OPERATIONS
    groups = [_group(call, name) for name in call.body.groups]
    call.answer({"groups": [{**group, "authorized_operations": operations} for group in groups]})


def _group(call: Call, name: str) -> dict[str, Any]:
    try:
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
    }


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
    }


API: Final = Api(15, "DescribeGroups", 0, 6, serve)

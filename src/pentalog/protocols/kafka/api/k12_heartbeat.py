"""Heartbeat: a member lives; the answer tells it when it must join again.

1: throttle time.  3: static members.  4: flexible.
"""

from __future__ import annotations

from typing import Final

from pentalog.broker.port import Fence
from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.coordination import group_code
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    body = call.body
    fence = Fence(body.member_id, body.generation_id, call.field("group_instance_id", None))
    try:
        demand(call.access, Operation.READ, Kind.GROUP, body.group_id)
        call.context.broker.groups.heartbeat(body.group_id, fence)
    except BrokerError as refusal:
        call.answer({"error_code": group_code(refusal)})
        return
    call.answer({"error_code": 0})


API: Final = Api(12, "Heartbeat", 0, 4, serve)

"""LeaveGroup: members go, so that the others need not wait until they are missed.

1: throttle time.  3: several members at a time, static ones by their names.  4: flexible.
5: a reason.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.port import Leaving
from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError
from pentalog.protocols.kafka.authorization import refusal_of
from pentalog.protocols.kafka.codec import Made
from pentalog.protocols.kafka.coordination import group_code
from pentalog.protocols.kafka.messages import Api, Call, Steps, portions


def serve(call: Call) -> Steps[None]:
    body = call.body
    denied = refusal_of(call.access, Operation.READ, Kind.GROUP, body.group_id)
    if denied:
        call.answer({"error_code": denied, "members": []})
        return
    if call.version < 3:
        leaving = [Leaving(body.member_id)]
    else:
        leaving = yield from call.each(
            body.members,
            lambda member: Leaving(
                member.member_id,
                member.group_instance_id,
                getattr(member, "reason", None) or "",
            ),
        )
    outcomes: list[BrokerError | None] = []
    for some in portions(leaving):
        try:
            outcomes += call.context.broker.groups.leave(body.group_id, some)
        except BrokerError as refusal:
            outcomes += [refusal] * len(some)
        if len(some) < len(leaving):
            yield None
    codes = yield from call.each(
        outcomes, lambda outcome: 0 if outcome is None else group_code(outcome)
    )
    yield from call.reply(
        {
            "error_code": codes[0] if call.version < 3 else 0,
            "members": Made(list(zip(leaving, codes, strict=True)), _result),
        }
    )


def _result(left: tuple[Leaving, int]) -> dict[str, Any]:
    who, code = left
    return {
        "member_id": who.member_id,
        "group_instance_id": who.instance_id,
        "error_code": code,
    }


API: Final = Api(13, "LeaveGroup", 0, 5, serve, finishes=True)

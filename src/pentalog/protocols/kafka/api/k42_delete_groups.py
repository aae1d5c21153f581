"""DeleteGroups: delete groups without members, and their offsets.

1: throttles before it answers.  2: flexible.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.coordination import group_code
from pentalog.protocols.kafka.messages import Api, Call, Steps


def serve(call: Call) -> Steps[None]:
    groups = call.context.broker.groups

    def delete(name: str) -> dict[str, Any]:
        try:
            demand(call.access, Operation.DELETE, Kind.GROUP, name)
            groups.delete(name)
        except BrokerError as refusal:
            return {"group_id": name, "error_code": group_code(refusal)}
        return {"group_id": name, "error_code": 0}

    # As in Kafka, a group that is named again is deleted and answered once.
    names = list(dict.fromkeys(call.body.groups_names))
    results = yield from call.each(names, delete, cost=8)
    settled = groups.settle()
    yield settled
    try:
        settled.check()
    except BrokerError as refusal:
        for result in results:
            result["error_code"] = result["error_code"] or group_code(refusal)
    yield from call.reply({"results": results})


API: Final = Api(42, "DeleteGroups", 0, 2, serve, finishes=True)

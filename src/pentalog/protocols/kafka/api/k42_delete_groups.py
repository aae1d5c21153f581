"""DeleteGroups: delete groups without members, and their offsets.

1: throttles before it answers.  2: flexible.
"""

from __future__ import annotations

from typing import Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.coordination import answer_when_there, group_code
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    groups = call.context.broker.groups
    results = []
    for name in call.body.groups_names:
        try:
            demand(call.access, Operation.DELETE, Kind.GROUP, name)
            groups.delete(name)
        except BrokerError as refusal:
            results.append({"group_id": name, "error_code": group_code(refusal)})
        else:
            results.append({"group_id": name, "error_code": 0})

    def fields(settled: object) -> dict[str, object]:
        try:
            _ = later.value
        except BrokerError as refusal:
            for result in results:
                result["error_code"] = result["error_code"] or group_code(refusal)
        return {"results": results}

    later = groups.settle()
    answer_when_there(call, later, fields)


API: Final = Api(42, "DeleteGroups", 0, 2, serve)

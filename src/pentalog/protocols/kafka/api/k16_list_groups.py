"""ListGroups: the names of all groups, of some states or types if asked for.

1: throttle time.  3: flexible.  4: states.  5: types.
"""

from __future__ import annotations

from typing import Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.kafka_names import is_carried
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    states = {state.lower() for state in call.field("states_filter", ())}
    kinds = {kind.lower() for kind in call.field("types_filter", ())}
    sees_all = call.access.could(Operation.DESCRIBE, Kind.CLUSTER)
    listed = [
        {
            "group_id": view.name,
            "protocol_type": view.protocol_type,
            "group_state": view.state,
            "group_type": view.kind,
        }
        for view in call.context.broker.groups.all()
        if is_carried(view.name)
        and (sees_all or call.access.sees(Kind.GROUP, view.name))
        and (not states or view.state.lower() in states)
        and (not kinds or view.kind in kinds)
    ]
    call.answer({"groups": listed})


API: Final = Api(16, "ListGroups", 0, 5, serve)

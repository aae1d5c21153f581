"""ListGroups: the names of all groups, of some states or types if asked for.

1: throttle time.  3: flexible.  4: states.  5: types.
"""

from __future__ import annotations

from typing import Final

from pentalog.broker.port import GroupView
from pentalog.broker.security import Kind, Operation
from pentalog.model.kafka_names import is_carried
from pentalog.protocols.kafka.messages import Api, Call, Steps


def serve(call: Call) -> Steps[None]:
    states = {state.lower() for state in call.field("states_filter", ())}
    kinds = {kind.lower() for kind in call.field("types_filter", ())}
    sees_all = call.access.could(Operation.DESCRIBE, Kind.CLUSTER)

    def fields(view: GroupView) -> dict[str, str] | None:
        wanted = (
            is_carried(view.name)
            and (sees_all or call.access.sees(Kind.GROUP, view.name))
            and (not states or view.state.lower() in states)
            and (not kinds or view.kind in kinds)
        )
        if not wanted:
            return None
        return {
            "group_id": view.name,
            "protocol_type": view.protocol_type,
            "group_state": view.state,
            "group_type": view.kind,
        }

    listed = yield from call.each(call.context.broker.groups.all(), fields)
    yield from call.reply({"groups": [each for each in listed if each is not None]})


API: Final = Api(16, "ListGroups", 0, 5, serve)

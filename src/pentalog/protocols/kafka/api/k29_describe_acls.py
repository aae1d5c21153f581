"""DescribeAcls: the rules that match a filter, by resource.

1: patterns of names.  2: flexible.  3: the resource of users.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.security import Kind, Operation, Rule
from pentalog.protocols.kafka.acls import acl_fields, check_guarded, matching, resource_fields
from pentalog.protocols.kafka.administration import error_fields
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import REFUSALS
from pentalog.protocols.kafka.messages import Api, Call, Steps


def serve(call: Call) -> Steps[None]:
    try:
        demand(call.access, Operation.DESCRIBE, Kind.CLUSTER)
        check_guarded(call)
        found = yield from matching(call, call.context.broker.rules.all(), call.body)
    except REFUSALS as refusal:
        call.answer({**error_fields(refusal), "resources": []})
        return
    resources: dict[tuple[Any, ...], dict[str, Any]] = {}

    def add(rule: Rule) -> None:
        resource = resource_fields(rule)
        kept = resources.setdefault(tuple(resource.values()), {**resource, "acls": []})
        kept["acls"].append(acl_fields(rule))

    yield from call.each(found, add)
    yield from call.reply({**error_fields(None), "resources": list(resources.values())})


API: Final = Api(29, "DescribeAcls", 1, 3, serve)

"""DeleteAcls: remove the rules that match filters, and tell which they were.

1: patterns of names.  2: flexible.  3: the resource of users.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.security import Kind, Operation, Rule
from pentalog.protocols.kafka.acls import acl_fields, check_guarded, matching, resource_fields
from pentalog.protocols.kafka.administration import answer_settled, error_fields
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import REFUSALS
from pentalog.protocols.kafka.messages import Api, Call, Steps

_REMOVAL_COST: Final = 8


def serve(call: Call) -> Steps[None]:
    results = []
    for wanted in call.body.filters:
        results.append((yield from _delete(call, wanted)))
        yield None
    yield from answer_settled(call, {"filter_results": results}, results, changed=True)


def _delete(call: Call, wanted: Any) -> Steps[dict[str, Any]]:
    rules = call.context.broker.rules
    try:
        demand(call.access, Operation.ALTER, Kind.CLUSTER)
        check_guarded(call)
        found = yield from matching(call, rules.all(), wanted)
    except REFUSALS as refusal:
        return {**error_fields(refusal), "matching_acls": []}

    def remove(rule: Rule) -> dict[str, Any]:
        flaw: Exception | None = None
        try:
            rules.remove([rule])
            call.access.record("remove rule", str(rule))
        except REFUSALS as refusal:
            flaw = refusal
        return {**error_fields(flaw), **resource_fields(rule), **acl_fields(rule)}

    removed = yield from call.each(found, remove, cost=_REMOVAL_COST)
    return {**error_fields(None), "matching_acls": removed}


API: Final = Api(31, "DeleteAcls", 1, 3, serve, finishes=True)

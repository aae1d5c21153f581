"""DeleteAcls: remove the rules that match filters, and tell which they were.

1: patterns of names.  2: flexible.  3: the resource of users.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.security import Kind, Operation
from pentalog.protocols.kafka.acls import acl_fields, check_guarded, matching, resource_fields
from pentalog.protocols.kafka.administration import answer_settled, error_fields
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import REFUSALS
from pentalog.protocols.kafka.messages import Api, Call, Steps


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
        rules.remove(found)
    except REFUSALS as refusal:
        return {**error_fields(refusal), "matching_acls": []}
    for rule in found:
        call.access.record("remove rule", str(rule))
    return {
        **error_fields(None),
        "matching_acls": [
            {**error_fields(None), **resource_fields(rule), **acl_fields(rule)} for rule in found
        ],
    }


API: Final = Api(31, "DeleteAcls", 1, 3, serve, finishes=True)

"""CreateAcls: make rules, each with its own success or error.

1: patterns of names.  2: flexible.  3: the resource of users.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import InvalidConfig
from pentalog.protocols.kafka.acls import check_guarded, rule_of
from pentalog.protocols.kafka.administration import answer_settled, error_fields
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused
from pentalog.protocols.kafka.messages import Api, Call, Steps

_CREATE_COST: Final = 8


def serve(call: Call) -> Steps[None]:
    def create(creation: Any) -> dict[str, Any]:
        flaw: Exception | None = None
        try:
            demand(call.access, Operation.ALTER, Kind.CLUSTER)
            check_guarded(call)
            rule = rule_of(creation)
            call.context.broker.rules.add([rule])
            call.access.record("add rule", str(rule))
        except InvalidConfig as refusal:
            flaw = Refused(ErrorCode.invalid_request, str(refusal))
        except REFUSALS as refusal:
            flaw = refusal
        return error_fields(flaw)

    results = yield from call.each(call.body.creations, create, cost=_CREATE_COST)
    yield from answer_settled(call, {"results": results}, results, changed=True)


API: Final = Api(30, "CreateAcls", 1, 3, serve, finishes=True)

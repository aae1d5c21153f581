"""AlterClientQuotas: set and remove quotas; they hold from the client's next request on.

v1 is flexible.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.operation import Quota
from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import InvalidConfig
from pentalog.protocols.kafka.administration import answer_settled, error_fields, find_repeated
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused
from pentalog.protocols.kafka.messages import Api, Call, Steps
from pentalog.protocols.kafka.quotas import QUOTAS, owner_of

_ENTRY_COST: Final = 8


def serve(call: Call) -> Steps[None]:
    results: list[dict[str, Any]] = []
    for entry in call.body.entries:
        flaw: Exception | None = None
        try:
            demand(call.access, Operation.ALTER_SETTINGS, Kind.CLUSTER)
            yield from _alter(call, entry)
        except InvalidConfig as refusal:
            flaw = Refused(ErrorCode.invalid_request, str(refusal))
        except REFUSALS as refusal:
            flaw = refusal
        entity = yield from call.each(entry.entity, _named)
        results.append({**error_fields(flaw), "entity": entity})
        yield from call.spend(_ENTRY_COST)
    yield from answer_settled(
        call, {"entries": results}, results, changed=not call.body.validate_only
    )


def _named(each: Any) -> dict[str, Any]:
    return {"entity_type": each.entity_type, "entity_name": each.entity_name}


def _alter(call: Call, entry: Any) -> Steps[None]:
    owner = owner_of(entry.entity)
    for key in (yield from find_repeated(call, (each.key for each in entry.ops))):
        raise Refused(ErrorCode.invalid_request, f"quota {key!r} is named twice: name it once")
    changes: dict[Quota, float | None] = {}

    def note(each: Any) -> None:
        quota = QUOTAS.get(each.key)
        if quota is None and each.remove:
            return
        if quota is None:
            raise Refused(ErrorCode.invalid_request, _unknown(each.key))
        changes[quota] = None if each.remove else each.value

    yield from call.each(entry.ops, note)
    call.context.broker.quotas.change(owner, changes, dry_run=call.body.validate_only)


def _unknown(key: str) -> str:
    return f"there is no quota {key[:100]!r}: accepted are {', '.join(QUOTAS)}"


API = Api(49, "AlterClientQuotas", 0, 1, serve, finishes=True)

"""CreateDelegationToken: let somebody log in as the asker, or as another user, for a while.

1: same as 0.  2: flexible.  3: for another user.
"""

from __future__ import annotations

from typing import Final

from pentalog.broker.credentials import TokenView
from pentalog.broker.security import Kind, Operation, Principal
from pentalog.model.errors import InvalidConfig, Overloaded
from pentalog.protocols.kafka.administration import answer_settled
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.codec import milliseconds
from pentalog.protocols.kafka.delegation import (
    USER,
    check_asker,
    token_fields,
)
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused, code_of
from pentalog.protocols.kafka.messages import Api, Call, Steps


def serve(call: Call) -> Steps[None] | None:
    owner = Principal("", "")
    try:
        asker = check_asker(call)
        owner = _owner(call, asker)
        token = _create(call, owner, asker)
    except REFUSALS as refusal:
        call.answer(_refused(owner, call.access.who, code_of(refusal)))
        return None
    call.access.record("create token", f"{token.token_id} of {token.owner}")
    fields = {"error_code": 0, "error_message": None, **token_fields(call, token)}
    return answer_settled(call, fields, [fields], changed=True)


def _create(call: Call, owner: Principal, asker: Principal) -> TokenView:
    body = call.body
    renewers = []
    for renewer in body.renewers:
        if renewer.principal_type != USER:
            raise Refused(ErrorCode.invalid_principal_type, "only users renew tokens")
        renewers.append(Principal(renewer.principal_type, renewer.principal_name))
    tokens = call.context.broker.tokens
    try:
        return tokens.create(owner, asker, renewers, milliseconds(body.max_lifetime))
    except InvalidConfig as refusal:
        raise Refused(ErrorCode.invalid_request, str(refusal)) from refusal
    except Overloaded as refusal:
        raise Refused(ErrorCode.policy_violation, str(refusal)) from refusal


def _owner(call: Call, asker: Principal) -> Principal:
    kind, name = call.field("owner_principal_type", None), call.field("owner_principal_name", None)
    if not name:
        return asker
    if kind != USER:
        raise Refused(ErrorCode.invalid_principal_type, "only users own tokens")
    owner = Principal(kind, name)
    if owner != asker:
        demand(call.access, Operation.CREATE_TOKENS, Kind.USER, str(owner))
    return owner


def _refused(owner: Principal, asker: Principal, error: int) -> dict[str, object]:
    return {
        "error_code": error,
        "principal_type": owner.kind,
        "principal_name": owner.name,
        "token_requester_principal_type": asker.kind,
        "token_requester_principal_name": asker.name,
        "issue_timestamp": -1,
        "expiry_timestamp": -1,
        "max_timestamp": -1,
        "token_id": "",
        "hmac": b"",
    }


API: Final = Api(38, "CreateDelegationToken", 1, 3, serve, finishes=True)

"""DescribeDelegationToken: the tokens the asker has to do with, and those he may see.

1: same as 0.  2: flexible.  3: who asked for each.
"""

from __future__ import annotations

from typing import Final

from pentalog.broker.credentials import TokenView
from pentalog.broker.security import Kind, Operation, Principal
from pentalog.protocols.kafka.delegation import check_asker, token_fields
from pentalog.protocols.kafka.errors import REFUSALS, code_of
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    try:
        asker = check_asker(call)
    except REFUSALS as refusal:
        call.answer({"error_code": code_of(refusal), "tokens": []})
        return
    owners = call.body.owners
    wanted = (
        None
        if owners is None
        else {Principal(owner.principal_type, owner.principal_name) for owner in owners}
    )
    found = [
        {
            **token_fields(call, token),
            "renewers": [
                {"principal_type": renewer.kind, "principal_name": renewer.name}
                for renewer in token.renewers
            ],
        }
        for token in call.context.broker.tokens.all()
        if (wanted is None or token.owner in wanted) and _sees(call, asker, token)
    ]
    call.answer({"error_code": 0, "tokens": found})


def _sees(call: Call, asker: Principal, token: TokenView) -> bool:
    if asker in (token.owner, token.requester, *token.renewers):
        return True
    access = call.access
    return access.guarded and (
        access.sees(Kind.TOKEN, token.token_id)
        or access.could(Operation.DESCRIBE_TOKENS, Kind.USER, str(token.owner))
    )


API: Final = Api(41, "DescribeDelegationToken", 1, 3, serve)

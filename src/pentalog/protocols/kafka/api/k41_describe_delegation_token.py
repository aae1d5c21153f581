"""DescribeDelegationToken: the tokens the caller has to do with, and those it may see.

1: same as 0.  2: flexible.  3: who asked for each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from itertools import chain
from typing import Any, Final

from pentalog.broker.credentials import TokenView
from pentalog.broker.security import Kind, Operation, Principal
from pentalog.protocols.kafka.codec import Made
from pentalog.protocols.kafka.delegation import check_asker, token_fields
from pentalog.protocols.kafka.errors import REFUSALS, code_of
from pentalog.protocols.kafka.messages import Api, Call, Steps


def serve(call: Call) -> Steps[None] | None:
    try:
        asker = check_asker(call)
    except REFUSALS as refusal:
        call.answer({"error_code": code_of(refusal), "tokens": []})
        return None
    owners = call.body.owners
    wanted = (
        None
        if owners is None
        else {Principal(owner.principal_type, owner.principal_name) for owner in owners}
    )
    return _list(call, asker, wanted)


def _list(call: Call, asker: Principal, owners: Collection[Principal] | None) -> Steps[None]:
    """Answer with every token that is asked for and that the caller may see."""

    def seen(token: TokenView) -> TokenView | None:
        if owners is not None and token.owner not in owners:
            return None
        return token if _sees(call, asker, token) else None

    found = yield from call.each(_candidates(call, asker, owners), seen, cost=4)
    shown = [token for token in found if token is not None]
    tokens = Made(shown, partial(_fields, call), at_once=16)
    yield from call.reply({"error_code": 0, "tokens": tokens})


def _candidates(
    call: Call, asker: Principal, owners: Collection[Principal] | None
) -> Iterator[TokenView]:
    """Tokens among which are all that the asker may see."""
    tokens, access = call.context.broker.tokens, call.access
    sees_others = access.guarded and (
        access.allows_any(Operation.DESCRIBE, Kind.TOKEN)
        or access.allows_any(Operation.DESCRIBE_TOKENS, Kind.USER)
    )
    if not sees_others:
        return tokens.of(asker)
    if owners is None:
        return tokens.all()
    each = chain.from_iterable(
        (token for token in tokens.of(owner) if token.owner == owner) for owner in owners
    )
    return iter(each)


def _sees(call: Call, asker: Principal, token: TokenView) -> bool:
    if asker in (token.owner, token.requester, *token.renewers):
        return True
    access = call.access
    return access.guarded and (
        access.sees(Kind.TOKEN, token.token_id)
        or access.could(Operation.DESCRIBE_TOKENS, Kind.USER, str(token.owner))
    )


def _fields(call: Call, token: TokenView) -> dict[str, Any]:
    renewers = [
        {"principal_type": renewer.kind, "principal_name": renewer.name}
        for renewer in token.renewers
    ]
    return {**token_fields(call, token), "renewers": renewers}


API: Final = Api(41, "DescribeDelegationToken", 1, 3, serve)

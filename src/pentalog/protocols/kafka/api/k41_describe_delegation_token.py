"""DescribeDelegationToken: the tokens the caller has to do with, and those it may see.

1: same as 0.  2: flexible.  3: who asked for each.

There may be many, and the answer has all of them: it is written in slices, between which other
clients are served.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain, islice
from typing import Any, Final

from pentalog.broker.credentials import TokenView
from pentalog.broker.security import Kind, Operation, Principal
from pentalog.protocols.kafka.codec import Written, element
from pentalog.protocols.kafka.delegation import check_asker, decode_small, token_fields, too_long
from pentalog.protocols.kafka.errors import REFUSALS, code_of
from pentalog.protocols.kafka.messages import Api, Call

_KEY: Final = 41
_SLICE: Final = 50
"""Tokens looked at in one turn: about 2 ms."""


def serve(call: Call) -> None:
    try:
        asker = check_asker(call)
        if call.body is None:
            raise too_long()
    except REFUSALS as refusal:
        call.answer({"error_code": code_of(refusal), "tokens": []})
        return
    owners = call.body.owners
    wanted = (
        None
        if owners is None
        else {Principal(owner.principal_type, owner.principal_name) for owner in owners}
    )
    _Listing(call, asker, wanted).advance()


class _Listing:
    """One answer that is being written."""

    def __init__(self, call: Call, asker: Principal, owners: Collection[Principal] | None) -> None:
        self._call = call
        self._asker = asker
        self._owners = owners
        self._tokens = _candidates(call, asker, owners)
        self._write = element(_KEY, call.version, "tokens")
        self._count = 0
        self._written = bytearray()
        self._place: Any = None

    def advance(self) -> None:
        """Write the next slice; the last one is followed by the answer."""
        looked_at = 0
        for token in islice(self._tokens, _SLICE):
            looked_at += 1
            if self._shows(token):
                self._count += 1
                self._write(self._written, _fields(self._call, token))
        if looked_at == _SLICE:
            if self._place is None:
                self._place = self._call.place()
            self._call.context.runtime.soon(self.advance)
            return
        answer = self._call.answer if self._place is None else self._place.answer
        answer({"error_code": 0, "tokens": Written(self._count, self._written)})

    def _shows(self, token: TokenView) -> bool:
        if self._owners is not None and token.owner not in self._owners:
            return False
        return _sees(self._call, self._asker, token)


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


API: Final = Api(
    _KEY,
    "DescribeDelegationToken",
    1,
    3,
    serve,
    decode=lambda *given: decode_small(_KEY, *given),
)

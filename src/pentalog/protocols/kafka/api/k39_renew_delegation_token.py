"""RenewDelegationToken: make a token good for longer, within its longest life.

1: same as 0.  2: flexible.
"""

from __future__ import annotations

from typing import Final

from pentalog.protocols.kafka.codec import milliseconds
from pentalog.protocols.kafka.delegation import answer_expiry, check_good, owned, refuse_expiry
from pentalog.protocols.kafka.errors import REFUSALS
from pentalog.protocols.kafka.messages import Api, Call, Steps


def serve(call: Call) -> Steps[None] | None:
    try:
        token = owned(call, call.body.hmac)
        check_good(call, token)
        token = call.context.broker.tokens.prolong(
            token.token_id, milliseconds(call.body.renew_period)
        )
    except REFUSALS as refusal:
        refuse_expiry(call, refusal)
        return None
    call.access.record("renew token", f"{token.token_id} of {token.owner}")
    return answer_expiry(call, token.expires_ms)


API: Final = Api(39, "RenewDelegationToken", 1, 2, serve)

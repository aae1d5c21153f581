"""ExpireDelegationToken: make a token good for less long, or for no time at all.

1: same as 0.  2: flexible.
"""

from __future__ import annotations

from typing import Final

from pentalog.protocols.kafka.codec import milliseconds
from pentalog.protocols.kafka.delegation import answer_expiry, check_good, owned, refuse_expiry
from pentalog.protocols.kafka.errors import REFUSALS
from pentalog.protocols.kafka.messages import Api, Call, Steps


def serve(call: Call) -> Steps[None] | None:
    tokens = call.context.broker.tokens
    period_ms = milliseconds(call.body.expiry_time_period)
    try:
        token = owned(call, call.body.hmac)
        if period_ms < 0:
            tokens.drop(token.token_id)
            expires_ms = call.context.runtime.now_ms()
        else:
            check_good(call, token)
            expires_ms = tokens.prolong(token.token_id, period_ms).expires_ms
    except REFUSALS as refusal:
        refuse_expiry(call, refusal)
        return None
    call.access.record("expire token", f"{token.token_id} of {token.owner}")
    return answer_expiry(call, expires_ms)


API: Final = Api(40, "ExpireDelegationToken", 1, 2, serve)

"""What the requests about delegation tokens share: who may ask, and how a token is told."""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.credentials import TokenView
from pentalog.broker.security import ANONYMOUS, Principal
from pentalog.protocols.kafka import codec
from pentalog.protocols.kafka.administration import answer_settled
from pentalog.protocols.kafka.errors import ErrorCode, Refused, code_of
from pentalog.protocols.kafka.messages import Call

USER: Final = "User"
REQUEST_BYTES_MAX: Final = 64 << 10
"""Of a request about tokens: it names a few users."""


def decode_small(key: int, version: int, body: memoryview) -> Any:
    """Decode a request unless it is too long; None: it is."""
    return None if len(body) > REQUEST_BYTES_MAX else codec.decode(key, version, body)


def too_long() -> Refused:
    return Refused(
        ErrorCode.invalid_request,
        f"a request of more than {REQUEST_BYTES_MAX} bytes; name fewer users",
    )


def check_asker(call: Call) -> Principal:
    """Whoever asks must be known, and not by a token himself; raises `Refused`."""
    if not call.context.broker.tokens.enabled:
        raise Refused(
            ErrorCode.delegation_token_auth_disabled,
            "this broker makes no tokens: set delegation_token_secret",
        )
    access = call.access
    if not call.context.demands or access.who == ANONYMOUS or access.by_token:
        raise Refused(
            ErrorCode.delegation_token_request_not_allowed,
            "tokens are for those who have logged in, and not by a token",
        )
    return access.who


def owned(call: Call, secret: bytes) -> TokenView:
    """The token of a secret, if the asker may decide about it; raises `Refused`."""
    who = check_asker(call)
    token = call.context.broker.tokens.by_secret(secret)
    if token is None:
        raise Refused(ErrorCode.delegation_token_not_found, "there is no such token")
    if who not in (token.owner, token.requester, *token.renewers):
        raise Refused(
            ErrorCode.delegation_token_owner_mismatch,
            "only its owner and those he named may decide about a token",
        )
    return token


def check_good(call: Call, token: TokenView) -> None:
    if call.context.broker.tokens.get(token.token_id) is None:
        raise Refused(ErrorCode.delegation_token_expired, "the token is good no more")


def answer_expiry(call: Call, expires_ms: int) -> None:
    """Tell until when a token is good, once that is on the disk."""
    fields = {"error_code": 0, "error_message": None, "expiry_timestamp": expires_ms}
    answer_settled(call, fields, [fields], changed=True)


def refuse_expiry(call: Call, refusal: Exception) -> None:
    call.answer({"error_code": code_of(refusal), "expiry_timestamp": -1})


def token_fields(call: Call, token: TokenView) -> dict[str, Any]:
    return {
        "principal_type": token.owner.kind,
        "principal_name": token.owner.name,
        "token_requester_principal_type": token.requester.kind,
        "token_requester_principal_name": token.requester.name,
        "issue_timestamp": token.issued_ms,
        "expiry_timestamp": token.expires_ms,
        "max_timestamp": token.expires_ms_max,
        "token_id": token.token_id,
        "hmac": call.context.broker.tokens.secret(token.token_id),
    }

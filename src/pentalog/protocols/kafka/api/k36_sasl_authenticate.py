"""SaslAuthenticate: a message of the mechanism chosen before.

1: how long the login is good for.  2: flexible.
Where a login is under way, `login.py` serves this; here is what others are told.
"""

from __future__ import annotations

from typing import Final

from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    call.answer(
        {
            "error_code": int(ErrorCode.illegal_sasl_state),
            "error_message": "no login is under way: begin with SaslHandshake, on a listener "
            "that demands one",
            "auth_bytes": b"",
            "session_lifetime": 0,
        }
    )


API: Final = Api(36, "SaslAuthenticate", 0, 2, serve)

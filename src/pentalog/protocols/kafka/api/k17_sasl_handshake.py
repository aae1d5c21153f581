"""SaslHandshake: choosing how to log in.

1: the messages of the mechanism come in SaslAuthenticate.
Where a listener demands a login, `login.py` serves this; here is what all others answer.
"""

from __future__ import annotations

from typing import Final

from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    call.answer({"error_code": int(ErrorCode.illegal_sasl_state), "mechanisms": ()})


API: Final = Api(17, "SaslHandshake", 0, 1, serve)

"""Verifiers of passwords as Kafka's clients send them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any, Final

from pentalog.broker.credentials import Mechanism, Verifier
from pentalog.protocols.kafka.errors import ErrorCode, Refused

CODES: Final[Mapping[Mechanism, int]] = {Mechanism.SHA_256: 1, Mechanism.SHA_512: 2}
_MECHANISMS: Final = {code: mechanism for mechanism, code in CODES.items()}


def mechanism_of(code: int) -> Mechanism:
    found = _MECHANISMS.get(code)
    if found is None:
        raise Refused(
            ErrorCode.unsupported_sasl_mechanism,
            f"mechanism {code}; 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512",
        )
    return found


def verifier_of(mechanism: Mechanism, upsertion: Any) -> Verifier:
    """What is kept of a password the client has salted already (RFC 5802)."""
    salted = upsertion.salted_password
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    return Verifier(
        upsertion.salt,
        hashlib.new(mechanism.digest, client_key).digest(),
        hmac.digest(salted, b"Server Key", mechanism.digest),
        upsertion.iterations,
    )

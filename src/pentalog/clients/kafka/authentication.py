"""Saying who one is: SASL PLAIN and SCRAM, as a conversation of tokens."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Generator
from typing import Final

from pentalog.clients.kafka.errors import KafkaFailed

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

_DIGESTS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_ITERATIONS_MAX: Final = 1_000_000

Exchange = Callable[[bytes], bytes]
Conversation = Generator[bytes, bytes, None]
"""Yields each token for the broker and is sent the broker's."""


def authenticate(mechanism: str, username: str, password: str, exchange: Exchange) -> None:
    """Run the conversation; `exchange` sends a token and gives back the broker's."""
    tokens = conversation(mechanism, username, password)
    try:
        token = next(tokens)
        while True:
            token = tokens.send(exchange(token))
    except StopIteration:
        return


def conversation(mechanism: str, username: str, password: str) -> Conversation:
    """Ends when the login is done; raises `KafkaFailed` if the broker is not to be trusted."""
    if mechanism == "PLAIN":
        yield b"\0" + username.encode() + b"\0" + password.encode()
        return
    yield from _scram(_DIGESTS[mechanism], username, password)


def _scram(digest: str, username: str, password: str) -> Conversation:
    nonce = secrets.token_urlsafe(24)
    name = username.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}"
    challenge = (yield f"n,,{first}".encode()).decode()
    fields = _fields(challenge)
    try:
        both, salt, rounds = fields["r"], base64.b64decode(fields["s"]), int(fields["i"])
    except (KeyError, ValueError) as error:
        raise KafkaFailed("the broker's challenge cannot be read; is it SCRAM it wants?") from error
    if not both.startswith(nonce) or not 1 <= rounds <= _ITERATIONS_MAX:
        raise KafkaFailed("the broker's challenge does not belong to this conversation")
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, rounds)
    client_key = hmac.digest(salted, b"Client Key", digest)
    last = f"c=biws,r={both}"
    said = f"{first},{challenge},{last}".encode()
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), said, digest)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    final = _fields((yield f"{last},p={base64.b64encode(proof).decode()}".encode()).decode())
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), said, digest)
    if not hmac.compare_digest(base64.b64decode(final.get("v", "")), expected):
        raise KafkaFailed("the broker did not prove that it knows the password; do not trust it")


def _fields(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(","))
    return {name: value for name, _, value in pairs}

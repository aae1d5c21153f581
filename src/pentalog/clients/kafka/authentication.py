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
_ITERATIONS_MIN: Final = 4096
"""Of RFC 7677.  Fewer would let an impostor find the password from our proof quickly."""
_ITERATIONS_MAX: Final = 1_000_000
"""More would let an impostor occupy us; this takes about half a second."""
_CHALLENGE_BYTES_MAX: Final = 8 << 10

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
    challenge = _text((yield f"n,,{first}".encode()))
    both, salt, rounds = _read_challenge(challenge)
    if not both.startswith(nonce) or len(both) == len(nonce):
        raise KafkaFailed(
            "the broker's challenge does not belong to this conversation: it does not continue our "
            "nonce; do not trust this broker"
        )
    if not _ITERATIONS_MIN <= rounds <= _ITERATIONS_MAX:
        raise KafkaFailed(
            f"the broker asks for {rounds} iterations; accepted are {_ITERATIONS_MIN} to "
            f"{_ITERATIONS_MAX}: set the user's password again with as many, or do not trust "
            "this broker"
        )
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, rounds)
    client_key = hmac.digest(salted, b"Client Key", digest)
    last = f"c=biws,r={both}"
    said = f"{first},{challenge},{last}".encode()
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), said, digest)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    final = _fields(_text((yield f"{last},p={base64.b64encode(proof).decode()}".encode())))
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), said, digest)
    try:
        shown = base64.b64decode(final.get("v", ""), validate=True)
    except ValueError:
        shown = b""
    if not hmac.compare_digest(shown, expected):
        raise KafkaFailed("the broker did not prove that it knows the password; do not trust it")


def _read_challenge(challenge: str) -> tuple[str, bytes, int]:
    """Nonce, salt and iterations."""
    fields = _fields(challenge)
    try:
        salt = base64.b64decode(fields["s"], validate=True)
        return fields["r"], salt, int(fields["i"])
    except (KeyError, ValueError) as error:
        raise KafkaFailed("the broker's challenge cannot be read; is it SCRAM it wants?") from error


def _text(message: bytes) -> str:
    """What the broker says; raises `KafkaFailed` if that is no message of SCRAM."""
    if len(message) > _CHALLENGE_BYTES_MAX:
        raise KafkaFailed(f"the broker says {len(message)} bytes where SCRAM has a few hundred")
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise KafkaFailed("the broker's challenge is not text; is it SCRAM it wants?") from error


def _fields(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(","))
    return {name: value for name, _, value in pairs}

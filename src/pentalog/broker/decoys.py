"""Challenges for users that do not exist, which look like those of users that do.

A challenge shows a salt and a number of iterations.  Both are computed from the name and a secret
that outlives restarts, so that they stay the same; and they are like those of a real user, chosen
by the same computation, because administrators' tools differ in the salts that they make.
"""

from __future__ import annotations

import hmac
import math
import secrets
from collections import Counter
from typing import Final, NamedTuple, TypeVar

from pentalog.broker.credentials import NAME_BYTES_MAX, Mechanism, Verifier

T = TypeVar("T")

SECRET_BYTES: Final = 32
_SHAPES_MAX: Final = 16
_LETTERS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
"""What Kafka's own tools make salts of."""


class Shape(NamedTuple):
    """What a challenge shows of a verifier."""

    iterations: int
    salt_bytes: int
    in_letters: bool

    @classmethod
    def of(cls, verifier: Verifier) -> Shape:
        in_letters = not verifier.salt.strip(_LETTERS)
        return cls(verifier.iterations, len(verifier.salt), in_letters)


class Decoys:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def verifier(self, name: str, mechanism: Mechanism, shapes: Counter[Shape]) -> Verifier:
        """A verifier of one of these shapes that no password fits; the same salt every time."""
        label = mechanism.value
        shape = self.choose(label, name, shapes)
        salt = self._bytes(f"{label} {shape}", name, shape.salt_bytes)
        if shape.in_letters:
            salt = bytes(_LETTERS[byte % len(_LETTERS)] for byte in salt)
        size = mechanism.digest_bytes
        return Verifier(
            salt, secrets.token_bytes(size), secrets.token_bytes(size), shape.iterations
        )

    def choose(self, label: str, name: str, options: Counter[T]) -> T:
        """One of the options, as often as it is there among names; stable while they are.

        Weighted rendezvous hashing: a name keeps its choice unless that option becomes rarer or
        another one more common.
        """
        best, best_score = None, -1.0
        for option, weight in options.most_common(_SHAPES_MAX):
            drawn = int.from_bytes(self._bytes(f"{label} {option!r}", name, 8), "big")
            score = weight / -math.log((drawn + 1) / (2**64 + 1))
            if score > best_score:
                best, best_score = option, score
        assert best is not None, "there is at least one option"
        return best

    def _bytes(self, label: str, name: str, size: int) -> bytes:
        start = name[:NAME_BYTES_MAX].encode("utf-8", "surrogatepass")
        found = b""
        for number in range(-(-size // 64)):
            text = b"\0".join((label.encode(), b"%d" % number, start))
            found += hmac.digest(self._secret, text, "sha512")
        return found[:size]

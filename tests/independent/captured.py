"""Reads a captured conversation: what a client sent, and what the original server answered.

A line with `#` names the exchange; `C` and `S` are the bytes of client and server in hexadecimal,
an empty `S` is silence; an indented line goes on with the one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Exchange:
    """What was sent, and what came back."""

    name: str
    request: bytes
    answer: bytes


def exchanges(conversation: str) -> Iterator[Exchange]:
    """Every exchange of a conversation, in order."""
    joined = conversation.strip().replace("\n  ", "")
    name, request = "", b""
    for line in joined.splitlines():
        mark, _, rest = line.partition(" ")
        if mark == "#":
            name = rest
        elif mark == "C":
            request = bytes.fromhex(rest)
        elif mark == "S":
            yield Exchange(name, request, bytes.fromhex(rest))
        else:
            raise ValueError(f"not a line of a conversation: {line}")

"""The topic names Kafka's clients may use: fewer than the broker itself accepts."""

from __future__ import annotations

import re
from typing import Final

NAME_CHARACTERS_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+\Z")


def kafka_name_flaw(name: str) -> str | None:
    """Why Kafka would refuse a topic of this name, or None."""
    if not name:
        return "a topic's name cannot be empty"
    if name in (".", ".."):
        return f"a topic cannot be named {name!r}: add a letter or a digit"
    if len(name) > NAME_CHARACTERS_MAX:
        return (
            f"topic name {name[:30]!r}... has {len(name)} characters: "
            f"{NAME_CHARACTERS_MAX} are accepted"
        )
    if _LEGAL.match(name) is None:
        return f"topic name {name!r} is not made of ASCII letters, digits, '.', '_' and '-' alone"
    return None

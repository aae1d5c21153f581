"""The topic names Kafka's clients may use: fewer than the broker itself accepts."""

from __future__ import annotations

from pentalog.model.kafka_names import NAME_CHARACTERS_MAX, is_kafka_name


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
    if not is_kafka_name(name):
        return f"topic name {name!r} is not made of ASCII letters, digits, '.', '_' and '-' alone"
    return None

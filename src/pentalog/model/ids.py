"""Random ids of clusters, topics and delegation tokens, and how Kafka spells them."""

from __future__ import annotations

import base64
import uuid


def new_id() -> uuid.UUID:
    """A random id whose spelling a command line cannot mistake for an option.

    Kafka's `Uuid.randomUuid` has the same rule: users pass these ids as arguments.
    """
    while True:
        found = uuid.uuid4()
        if not spell_id(found).startswith("-"):
            return found


def spell_id(given: uuid.UUID) -> str:
    """22 characters of URL-safe base64, without padding."""
    return base64.urlsafe_b64encode(given.bytes).rstrip(b"=").decode()

"""The topic names Kafka itself gives: what its clients are told of when they ask for all topics.

The log has topics of any name.  Some clients stumble over others in a list (one refuses to
subscribe by a pattern that finds such a name, one ends names at a zero byte), so lists and patterns
leave them out; who asks for one by its name gets it.
"""

from __future__ import annotations

import re
from typing import Final

NAME_CHARACTERS_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_CARRIED_BYTES_MAX: Final = (1 << 15) - 1


def is_kafka_name(name: str) -> bool:
    """Could this be a topic of an Apache Kafka?"""
    return _LEGAL.fullmatch(name) is not None and name not in (".", "..")


def is_carried(name: str) -> bool:
    """Has a name room in a text of Kafka's messages, of a topic or of a group?"""
    return len(name) <= _CARRIED_BYTES_MAX and len(name.encode()) <= _CARRIED_BYTES_MAX

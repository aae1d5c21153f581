"""Reads the frames of a connection for somebody who watches it."""

from __future__ import annotations

from typing import Any, Final

from pentalog.observation import Told
from pentalog.protocols.kafka import codec, frames
from pentalog.protocols.kafka.api import APIS
from pentalog.protocols.kafka.entities import Undecodable
from pentalog.protocols.kafka.frames import Header, Walk

_PRODUCE: Final = 0
_FLEXIBLE_PRODUCE: Final = 9
_PRODUCE_BY_ID: Final = 13
_SECRETS: Final = frozenset({36, 38, 39, 40, 41, 51})
"""SaslAuthenticate, delegation tokens, and credentials of users."""
_OUTSTANDING_MAX: Final = 10_000


class KafkaInspector:
    """Knows which requests are on their way, so that answers have names too."""

    def __init__(self) -> None:
        self._outstanding: dict[int, tuple[str, int, bool]] = {}

    def request(self, head: memoryview, size: int) -> Told:
        try:
            header = frames.read_header(head, 0, len(head))
        except Undecodable:
            return Told("unreadable", secret=True)
        api = APIS.get(header.key)
        if api is None or not api.version_min <= header.version <= api.version_max:
            # A bare token of the old way to log in looks like this.
            return Told("unknown", secret=True)
        secret = header.key in _SECRETS
        if len(self._outstanding) < _OUTSTANDING_MAX:
            self._outstanding[header.correlation_id] = (api.name, header.version, secret)
        topic = None if secret else _topic(header, head, size)
        return Told(
            api.name, header.correlation_id, header.version, topic, header.client_id, secret
        )

    def reply(self, head: memoryview, size: int) -> Told:
        if len(head) < 4:
            return Told("unreadable", secret=True)
        correlation_id = int.from_bytes(head[:4], "big", signed=True)
        asked = self._outstanding.pop(correlation_id, None)
        if asked is None:
            # Asked before anybody watched: it may be the answer to anything.
            return Told("unknown", correlation_id, secret=True)
        name, version, secret = asked
        return Told(name, correlation_id, version, secret=secret)


def _topic(header: Header, head: memoryview, size: int) -> str | None:
    """The first topic a request names, where that can be seen."""
    try:
        position = header.position
        if frames.flexible_header(header.key, header.version):
            position = frames.skip_tags(head, position, len(head))
        if header.key == _PRODUCE:
            return _produce_topic(header.version, Walk(head, position, len(head)))
        if size > len(head):
            return None
        return _first_name(codec.decode(header.key, header.version, head[position:]))
    except Undecodable:
        return None


def _produce_topic(version: int, walk: Walk) -> str | None:
    flexible = version >= _FLEXIBLE_PRODUCE
    walk.take(max(0, walk.size(flexible=flexible, wide=False)))
    walk.take(6)
    if walk.size(flexible=flexible, wide=True) < 1:
        return None
    if version >= _PRODUCE_BY_ID:
        return bytes(walk.take(16)).hex()
    return str(walk.take(walk.size(flexible=flexible, wide=False)), "utf-8", "replace")


def _first_name(entity: Any) -> str | None:
    for topic in getattr(entity, "topics", None) or ():
        name = getattr(topic, "name", None) or getattr(topic, "topic", topic)
        if isinstance(name, str):
            return name
        identity = getattr(topic, "topic_id", None)
        return None if identity is None else str(identity.hex)
    return None

"""Reads the frames of a connection for somebody who watches it."""

from __future__ import annotations

from typing import Final

from pentalog.observation import Told
from pentalog.protocols.cursus import frames
from pentalog.protocols.cursus.errors import Refused
from pentalog.protocols.cursus.messages import parse
from pentalog.protocols.cursus.verbs import VERBS

_TOKENS: Final = (b"token=", b"TOKEN=")
_TOPIC_START: Final = 4


class CursusInspector:
    def request(self, head: memoryview, size: int) -> Told:
        if not head:
            return Told("empty")
        if frames.is_batch(head):
            return Told("batch", topic=_batch_topic(head))
        text = _text(head)
        if text is None:
            # It may be an AUTH: opening it here would cost more than showing its first bytes helps.
            return Told("compressed", secret=True)
        try:
            command = parse(memoryview(text))
        except Refused:
            verb = text.split(None, 1)[0:1]
            return Told(verb[0].decode("utf-8", "replace")[:40] if verb else "empty", secret=True)
        secret = command.verb == "AUTH" or any(token in text for token in _TOKENS)
        topic = command.get("topic") or None
        name = command.verb if command.verb in VERBS else "unknown"
        return Told(name, topic=topic, secret=secret)

    def reply(self, head: memoryview, size: int) -> Told:
        if not head:
            return Told("keep-alive")
        if frames.is_batch(head):
            return Told("batch", topic=_batch_topic(head))
        word = bytes(head[:64]).split(None, 1)[0:1]
        first = word[0] if word else b""
        return Told(first.decode() if first.isalpha() and first.isascii() else "reply")


def _batch_topic(head: memoryview) -> str | None:
    length = int.from_bytes(head[2:_TOPIC_START], "big")
    name = head[_TOPIC_START : _TOPIC_START + length]
    return str(name, "utf-8", "replace") if 0 < length == len(name) else None


def _text(head: memoryview) -> bytes | None:
    """A command; None if it is none that can be read here."""
    try:
        text = bytes(frames.text_of(head))
    except Refused:
        return None
    return text if text[:1].isalpha() and text[:1].isascii() else None

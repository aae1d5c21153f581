"""Reads the frames of a connection, in either dialect, for somebody who watches it."""

from __future__ import annotations

import re
from typing import Final

from pentalog.observation import Told
from pentalog.protocols.rustlog import frames
from pentalog.protocols.rustlog.frames import PRODUCE, Undecodable

NAMES: Final = {
    0x01: "Produce", 0x02: "Fetch", 0x03: "OffsetCommit", 0x04: "OffsetFetch",
    0x05: "CreateTopic", 0x06: "ListTopics", 0x07: "DescribeTopic", 0x08: "DescribePartition",
    0x09: "MetricsFetch", 0xFE: "Error", 0xFF: "Ping",
}  # fmt: skip
_TYPE: Final = re.compile(rb'"type"\s*:\s*"([A-Za-z]{1,40})"')
_TOPIC: Final = re.compile(rb'"topic"\s*:\s*"([^"\\]{1,255})"')


class RustLogInspector:
    def request(self, head: memoryview, size: int) -> Told:
        if not head:
            return Told("empty")
        if frames.is_json(head):
            return _json(head)
        return Told(NAMES.get(head[0], "unknown"), topic=_topic(head))

    def reply(self, head: memoryview, size: int) -> Told:
        if not head:
            return Told("empty")
        if frames.is_json(head):
            return _json(head)
        name = NAMES.get(head[0], "unknown")
        return Told("Pong" if name == "Ping" else name)


def _json(head: memoryview) -> Told:
    text = bytes(head)
    kind, topic = _TYPE.search(text), _TOPIC.search(text)
    return Told(
        kind[1].decode() if kind else "unknown",
        topic=topic[1].decode("utf-8", "replace") if topic else None,
    )


def _topic(head: memoryview) -> str | None:
    if head[0] == PRODUCE:
        name = head[3 : 3 + int.from_bytes(head[1:3], "big")]
        return str(name, "utf-8", "replace") or None
    try:
        return getattr(frames.decode(head), "topic", None)
    except Undecodable:
        return None

"""Connections to one broker on disk, on which requests of any version are asked."""

from __future__ import annotations

import struct
from datetime import timedelta
from pathlib import Path
from typing import Any

from disk_broker import Connection, DiskBroker
from kafka_requests import request
from kafka_world import answer_of

from pentalog.broker.port import TopicSpec

SESSION_MS = 10_000


class GroupLine:
    def __init__(self, directory: Path, **settings: Any) -> None:
        settings.setdefault("group_initial_rebalance_delay_ms", 0)
        self.disk = DiskBroker(directory, **settings)
        self.disk.topics.create(TopicSpec(name="t", partitions=3))
        self.disk.runtime.run()

    @property
    def topic_id(self) -> Any:
        return self.disk.topics.get("t").topic_id

    def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        """Ask on a connection of its own, and give everything a chance to be done."""
        asked = Asked(self, key, version, fields)
        self.disk.runtime.advance(0)
        return asked.answer

    def begin(self, key: int, version: int, /, **fields: Any) -> Asked:
        """Ask something whose answer may come later."""
        return Asked(self, key, version, fields)

    def join(self, version: int, **changes: Any) -> Asked:
        return self.begin(11, version, **join_fields(**changes))

    def enter(self, version: int = 9, **changes: Any) -> Asked:
        """Join as a new member that fetches its id first."""
        told = self.join(version, **changes).answer
        assert told.error_code == 79
        return self.join(version, **{**changes, "member_id": told.member_id})

    def member(self, **changes: Any) -> Any:
        """A member alone in its group, with a plan; the answer to its join."""
        asked = self.enter(**changes)
        self.disk.runtime.advance(0)
        joined = asked.answer
        group = changes.get("group_id", "g")
        plan = [{"member_id": joined.member_id, "assignment": b"part"}]
        synced = self.ask(14, 5, **sync_fields(joined, group_id=group, assignments=plan))
        assert (synced.error_code, synced.assignment) == (0, b"part")
        return joined

    def close(self) -> None:
        self.disk.close()


class Asked:
    """One request on a connection of its own."""

    def __init__(self, line: GroupLine, key: int, version: int, fields: dict[str, Any]) -> None:
        self._key, self._version = key, version
        self._connection = Connection(line.disk)
        self._connection.feed(request(key, version, fields))

    @property
    def answered(self) -> bool:
        return bool(self._connection.line.frames())

    @property
    def hung_up(self) -> bool:
        return self._connection.line.hung_up

    @property
    def answer(self) -> Any:
        (frame,) = self._connection.line.frames()
        return answer_of(self._key, self._version, frame)


def subscription(*topics: str) -> bytes:
    """What a consumer tells the leader: version, names, no data of its own."""
    named = b"".join(struct.pack(">h", len(t)) + t.encode() for t in topics)
    return struct.pack(">hi", 0, len(topics)) + named + struct.pack(">i", -1)


def join_fields(**changes: Any) -> dict[str, Any]:
    return {
        "group_id": "g",
        "session_timeout": timedelta(milliseconds=SESSION_MS),
        "rebalance_timeout": timedelta(seconds=60),
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("t")}],
        "reason": None,
        **changes,
    }


def sync_fields(joined: Any, **changes: Any) -> dict[str, Any]:
    return {
        "group_id": "g",
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [],
        **changes,
    }


def fence_fields(joined: Any, **changes: Any) -> dict[str, Any]:
    return {
        "group_id": "g",
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "group_instance_id": None,
        **changes,
    }

"""Topics for attacks, made through the Kafka door."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeAlias

from tests.hostile.hostile_world import HostileWorld, ask, request, string
from tests.hostile.longest_turn import TimedBroker

Settings: TypeAlias = Mapping[str, str]
NO_SETTINGS: Settings = {}
_CREATE_TOPICS = 19

_DELETE_TOPICS = 20


def create_topic(
    world: HostileWorld | TimedBroker, name: str, partitions: int, settings: Settings = NO_SETTINGS
) -> None:
    body = struct.pack(">i", 1) + string(name) + struct.pack(">ihi", partitions, 1, 0)
    body += struct.pack(">i", len(settings))
    body += b"".join(string(key) + string(value) for key, value in settings.items())
    body += struct.pack(">i?", 30_000, False)
    with world.connect() as client:
        answer = ask(client, request(_CREATE_TOPICS, 2, 1, body))
    error = struct.unpack_from(">h", answer, 8 + len(string(name)))
    assert error == (0,), answer


def delete_topic(world: HostileWorld | TimedBroker, name: str) -> None:
    body = struct.pack(">i", 1) + string(name) + struct.pack(">i", 30_000)
    with world.connect() as client:
        answer = ask(client, request(_DELETE_TOPICS, 1, 1, body))
    error = struct.unpack_from(">h", answer, 8 + len(string(name)))
    assert error == (0,), answer

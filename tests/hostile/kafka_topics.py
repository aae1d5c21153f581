"""Topics for attacks, made through the Kafka door."""

from __future__ import annotations

import struct

from tests.hostile.hostile_world import HostileWorld, ask, request, string

_CREATE_TOPICS = 19


def create_topic(world: HostileWorld, name: str, partitions: int) -> None:
    body = struct.pack(">i", 1) + string(name) + struct.pack(">ihii", partitions, 1, 0, 0)
    body += struct.pack(">i?", 30_000, False)
    with world.connect() as client:
        answer = ask(client, request(_CREATE_TOPICS, 2, 1, body))
    error = struct.unpack_from(">h", answer, 8 + len(string(name)))
    assert error == (0,), answer

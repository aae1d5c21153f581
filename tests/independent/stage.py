"""A broker for these tests, and what neither protocol can do: limits of topics, records gone.

The latter goes through the Kafka door, because such requests belong to none of the protocols here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.server.broker_process import BrokerProcess, answer, connect, request

CREATE_TOPICS = 19
DELETE_RECORDS = 21
TIMEOUT_MS = 30_000


@dataclass(frozen=True)
class Stage:
    """A running broker."""

    port: int
    """Of the protocol under test."""
    kafka_port: int
    recorded: list[bytes] = field(default_factory=list)
    """Its answers to the captured conversation, which was the first thing it heard."""

    def make_topic(self, name: str, settings: Mapping[str, str]) -> None:
        """CreateTopics, version 2: one partition, one replica, and settings of its own."""
        pairs = b"".join(_text(setting) + _text(value) for setting, value in settings.items())
        topic = _text(name) + struct.pack(">ihii", 1, 1, 0, len(settings)) + pairs
        body = struct.pack(">i", 1) + topic + struct.pack(">i?", TIMEOUT_MS, False)
        reply = self._ask(CREATE_TOPICS, 2, body)
        (error,) = struct.unpack_from(">h", reply, 4 + 4 + len(_text(name)))
        assert not error, f"creating {name} failed with {error}"

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """DeleteRecords, version 0: the log of the partition starts at `before` from now on."""
        body = struct.pack(">i", 1) + _text(topic) + struct.pack(">iiq", 1, partition, before)
        reply = self._ask(DELETE_RECORDS, 0, body + struct.pack(">i", TIMEOUT_MS))
        low, error = struct.unpack_from(">qh", reply, len(reply) - 10)
        assert (low, error) == (before, 0), f"deleting records failed with {error}"

    def _ask(self, key: int, version: int, body: bytes) -> bytes:
        with connect(self.kafka_port) as client:
            client.settimeout(TIMEOUT_MS / 1000)
            client.sendall(request(key, version, 1, body))
            correlation_id, reply = answer(client)
            assert correlation_id == 1
            return reply


def stage_of(broker: BrokerProcess, door: str) -> Stage:
    """Where `broker` listens, by the lines it printed."""
    (line,) = (line for line in broker.lines if line.startswith(f"{door} listening"))
    return Stage(int(line.rpartition(":")[2]), broker.port)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded

"""BlipMQ's frames."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tests.security.guarded_world import Wire
from tests.security.matrix.matrix_cells import TOPIC, Asked

from pentalog.broker import rights
from pentalog.protocols.blipmq.frames import FrameType

REGISTRY = {kind.name for kind in FrameType}
_FENCE = 99


def frame(kind: int, correlation: int, payload: bytes = b"") -> bytes:
    return struct.pack(">BQ", kind, correlation) + payload


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def log_in(wire: Wire, key: str) -> None:
    assert wire.ask(frame(FrameType.HELLO, 1, b"\0\1"))[0] == FrameType.ACK
    assert wire.ask(frame(FrameType.AUTH, 2, text(key)))[0] == FrameType.ACK


def answers(wire: Wire, *frames: bytes) -> list[bytes]:
    """What comes back up to the answer to a PING behind these frames."""
    for each in frames:
        wire.send(each)
    wire.send(frame(FrameType.PING, _FENCE))
    found: list[bytes] = []
    while not found or found[-1] != frame(FrameType.PONG, _FENCE):
        found.append(wire.receive())
    return found[:-1]


def subscribed(wire: Wire) -> int:
    (answer,) = answers(wire, frame(FrameType.SUBSCRIBE, 3, text(TOPIC) + b"\1"))
    return int.from_bytes(answer[9:17], "big")


def _admitted(wire: Wire, *frames: bytes) -> bool:
    for answer in answers(wire, *frames):
        if answer[0] == FrameType.NACK and b"may not" in answer:
            (code,) = struct.unpack_from(">H", answer, 9)
            assert code == 401, answer
            return False
    return True


def operations(*subscriptions: int) -> Iterator[Asked]:
    """`subscriptions` of the topic belong to those who ask, one to each principal.

    Everybody asks for all of them: those of others are as good as none.
    """
    polls = [frame(FrameType.POLL, 5, number.to_bytes(8, "big")) for number in subscriptions]
    acks = [frame(FrameType.ACK, 6, number.to_bytes(8, "big")) for number in subscriptions]
    reading, writing = (rights.read_topic(TOPIC),), (rights.write_topic(TOPIC),)
    publish = {
        qos: frame(FrameType.PUBLISH, 4, bytes([qos]) + text(TOPIC) + b"x") for qos in (0, 1)
    }
    yield Asked("HELLO", (), lambda wire: _admitted(wire, frame(FrameType.HELLO, 1, b"\0\1")))
    yield Asked("AUTH", (), lambda wire: _admitted(wire, frame(FrameType.AUTH, 2, text("x"))))
    yield Asked("PUBLISH: volatile", writing, lambda wire: _admitted(wire, publish[0]))
    yield Asked("PUBLISH: durable", writing, lambda wire: _admitted(wire, publish[1]))
    yield Asked(
        "PUBLISH: one that makes its topic",
        (rights.create_topic("m-blip"), rights.write_topic("m-blip")),
        lambda wire: _admitted(wire, frame(FrameType.PUBLISH, 4, b"\1" + text("m-blip") + b"x")),
        gone="m-blip",
    )
    yield Asked(
        "SUBSCRIBE",
        reading,
        lambda wire: _admitted(wire, frame(FrameType.SUBSCRIBE, 3, text(TOPIC) + b"\1")),
    )
    yield Asked("POLL", reading, lambda wire: _admitted(wire, *polls))
    yield Asked("ACK", reading, lambda wire: _admitted(wire, *acks))
    yield Asked("NACK", (), lambda wire: _admitted(wire, frame(FrameType.NACK, 7)))
    yield Asked("PING", (), lambda wire: _admitted(wire, frame(FrameType.PING, 8)))
    yield Asked("PONG", (), lambda wire: _admitted(wire, frame(FrameType.PONG, 9)))

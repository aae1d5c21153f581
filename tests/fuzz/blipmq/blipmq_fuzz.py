"""Mutated BlipMQ frames against two equal brokers, one fed in whole streams, one in crumbs.

What must hold for any bytes: every byte is used or waited for, nothing raises, answers are whole
frames in order or the connection ends, both brokers answer the same, and nothing grows without
bound.  A failure names the seed and the round; the same seed gives the same frames.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.fuzz.twins import DAMAGES, Twins, damage
from tests.support.blipmq_world import AUTH, HELLO, BlipBroker, Connection

TOPICS_MAX = 100
"""More than this, and the brokers are made anew: mutated frames create topics."""
_NAMES = (b"a", b"b", b"demo", "grüße".encode(), b"a/b", b"..", b"\0\n", b"x" * 300)
_EDGES = (
    0,
    1,
    8,
    9,
    10,
    255,
    256,
    (16 << 20) - 1,
    16 << 20,
    (16 << 20) + 1,
    1 << 31,
    (1 << 32) - 1,
)
_ANSWERS = (3, 5, 6, 8)


def frame(kind: int, correlation: int, payload: bytes = b"") -> bytes:
    head = (9 + len(payload)).to_bytes(4, "big") + bytes((kind,))
    return head + correlation.to_bytes(8, "big") + payload


def sound(dice: random.Random) -> bytes:
    """A frame that means something here."""
    kind = dice.choices(range(1, 10), (1, 1, 30, 3, 15, 1, 8, 1, 30))[0]
    correlation = dice.choice((dice.randrange(40), dice.getrandbits(64)))
    topic = dice.choice(_NAMES)
    named = len(topic).to_bytes(2, "big") + topic
    if kind == 1:
        return frame(kind, correlation, b"\0\1")
    if kind == 2:
        return dice.choice((AUTH, frame(2, correlation, b"\0\5wrong")))
    if kind == 3:
        size = dice.choice((0, 1, 10, 100, 1000, 70_000) if dice.random() < 0.05 else (0, 5, 20))
        return frame(kind, correlation, bytes((dice.randrange(2),)) + named + dice.randbytes(size))
    if kind == 4:
        return frame(kind, correlation, named + bytes((dice.randrange(2),)))
    if kind in (5, 9):
        tag = dice.randrange(1, 60) if dice.random() < 0.9 else correlation
        return frame(kind, tag, dice.randrange(1, 12).to_bytes(8, "big"))
    return frame(kind, correlation, dice.randbytes(dice.randrange(3)) if kind == 7 else b"")


def mutated(data: bytes, dice: random.Random) -> bytes:
    out = bytearray(data)
    # Mostly none: a frame that ends the connection hides all that come after it.
    changes = dice.choice((1, 1, 2, 4)) if dice.random() < 0.2 else 0
    for _ in range(changes):
        if len(out) < 6:
            break
        at = dice.randrange(4, len(out))
        kind = dice.randrange(6)
        if kind < DAMAGES - 1:
            damage(out, at, kind, dice, (), edges=_EDGES)
        else:
            out[4] = dice.randrange(11)
    if not changes or dice.random() < 0.9:
        out[:4] = (len(out) - 4).to_bytes(4, "big")
    else:
        out[:4] = dice.choice(_EDGES).to_bytes(4, "big")
    return bytes(out)


class Fuzz(Twins[BlipBroker]):
    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        self._connections: list[Connection] = []

    def closed(self, broker: BlipBroker) -> None:
        broker.stop()
        self._connections = []

    def worn_out(self) -> bool:
        return len(self.pair[0].topics.all()) > TOPICS_MAX

    def settings(self) -> dict[str, Any]:
        return {
            "flush_interval_ms": self.dice.choice((0, 100)),
            "frame_bytes_max": self.dice.choice((1 << 20, 100 << 20)),
            "subscriptions_max": 50,
            "topic_defaults": self.dice.choice(
                ({}, {"subscription.backlog.max": "20"}, {"subscription.ttl.ms": "500"})
            ),
        }

    def opened(self, directory: Path, settings: dict[str, Any]) -> BlipBroker:
        broker = BlipBroker(directory, **settings)
        broker.topic("b", partitions=3)
        return broker

    def round(self) -> None:
        dice = self.dice
        if not self._connections or dice.random() < 0.3 or self._connections[0].ended:
            self._reconnect()
        count = dice.randrange(1, 40)
        stream = b"".join(mutated(sound(dice), dice) for _ in range(count))
        whole, crumbs = self._connections
        self.feed_both(whole, crumbs, stream)
        self.frames += count
        delay_ms = dice.choice((0, 0, 10, 250, 1000))
        for broker in self.pair:
            broker.runtime.advance(delay_ms)
        for connection in self._connections:
            connection.unmute()
        where = self.where
        answers = [connection.take() for connection in self._connections]
        assert answers[0] == answers[1], where
        assert whole.ended == crumbs.ended, where
        self._check(answers[0], where)
        self._check_bounds(where)

    def _reconnect(self) -> None:
        for connection in self._connections:
            connection.session.close()
        self._connections = [broker.connect() for broker in self.pair]
        if self.dice.random() < 0.95:
            for connection in self._connections:
                connection.ask(HELLO + AUTH)

    def _check(self, answers: bytes, where: str) -> None:
        while answers:
            length = int.from_bytes(answers[:4], "big")
            assert 9 <= length <= min(16 << 20, len(answers) - 4), where
            assert answers[4] in _ANSWERS, where
            answers = answers[4 + length :]
            self.answers += 1
        if self._connections[0].ended:
            self.hang_ups += 1

    def _check_bounds(self, where: str) -> None:
        for broker in self.pair:
            views = broker.subscriptions.all()
            assert len(views) <= 50, where
            for view in views:
                assert 0 <= view.unsettled <= 3 * 65_536, where

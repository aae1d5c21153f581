"""Mutated BlipMQ frames against two equal brokers, one fed in whole streams, one in crumbs.

What must hold for any bytes: every byte is used or waited for, nothing raises, answers are whole
frames in order or the connection ends, both brokers answer the same, and nothing grows without
bound.  A failure names the seed and the round; the same seed gives the same frames.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

from tests.support.blipmq_world import AUTH, HELLO, BlipBroker, Connection

TOPICS_MAX = 100
"""More than this, and the brokers are made anew: mutated frames create topics."""
ROUNDS_PER_BROKER = 150
_NAMES = (b"a", b"b", b"demo", "grüße".encode())
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
        if kind == 0:
            out[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            out[at] = dice.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            width = dice.choice((1, 2, 4, 8))
            edge = dice.choice(_EDGES) & ((1 << 8 * width) - 1)
            out[at : at + width] = edge.to_bytes(width, "big")
        elif kind == 3:
            del out[at : at + dice.choice((1, 2, 8, 1000))]
        elif kind == 4:
            out[at:at] = dice.randbytes(dice.choice((1, 2, 8, 50)))
        else:
            out[4] = dice.randrange(11)
    if not changes or dice.random() < 0.9:
        out[:4] = (len(out) - 4).to_bytes(4, "big")
    else:
        out[:4] = dice.choice(_EDGES).to_bytes(4, "big")
    return bytes(out)


class Fuzz:
    def __init__(self, seed: int, directory: Path) -> None:
        self.seed = seed
        self.frames = 0
        self.answers = 0
        self.hang_ups = 0
        self._dice = random.Random(seed)
        self._directory = directory
        self._rounds = 0
        self._pair: list[BlipBroker] = []
        self._connections: list[Connection] = []

    def run(self, frames: int) -> None:
        try:
            while self.frames < frames:
                if self._worn_out():
                    self._renew()
                self._round()
        finally:
            self.close()

    def close(self) -> None:
        for broker in self._pair:
            broker.stop()
            shutil.rmtree(broker.store.directory)
        self._pair = []

    def _worn_out(self) -> bool:
        if not self._pair or self._rounds % ROUNDS_PER_BROKER == 0:
            return True
        return len(self._pair[0].topics.all()) > TOPICS_MAX

    def _renew(self) -> None:
        self.close()
        self._connections = []
        settings = {
            "flush_interval_ms": self._dice.choice((0, 100)),
            "frame_bytes_max": self._dice.choice((1 << 20, 100 << 20)),
            "subscriptions_max": 50,
            "topic_defaults": self._dice.choice(
                ({}, {"subscription.backlog.max": "20"}, {"subscription.ttl.ms": "500"})
            ),
        }
        for _ in range(2):
            directory = Path(tempfile.mkdtemp(dir=self._directory))
            self._pair.append(BlipBroker(directory, **settings))
            self._pair[-1].topic("b", partitions=3)

    def _round(self) -> None:
        dice = self._dice
        self._rounds += 1
        if not self._connections or dice.random() < 0.3 or self._connections[0].ended:
            self._reconnect()
        count = dice.randrange(1, 40)
        stream = b"".join(mutated(sound(dice), dice) for _ in range(count))
        whole, crumbs = self._connections
        whole.feed(stream)
        position = 0
        while position < len(stream):
            size = dice.choice((1, 3, 50, 1000))
            crumbs.feed(stream[position : position + size])
            position += size
        self.frames += count
        delay_ms = dice.choice((0, 0, 10, 250, 1000))
        for broker in self._pair:
            broker.runtime.advance(delay_ms)
        where = f"seed {self.seed}, round {self._rounds}"
        answers = [connection.take() for connection in self._connections]
        assert answers[0] == answers[1], where
        assert whole.ended == crumbs.ended, where
        self._check(answers[0], where)
        self._check_bounds(where)

    def _reconnect(self) -> None:
        for connection in self._connections:
            connection.session.close()
        self._connections = [broker.connect() for broker in self._pair]
        if self._dice.random() < 0.95:
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
        for broker in self._pair:
            views = broker.subscriptions.all()
            assert len(views) <= 50, where
            for view in views:
                assert 0 <= view.unsettled <= 3 * 65_536, where


def fuzz(frames: int, seed: int) -> Fuzz:
    directory = Path(tempfile.mkdtemp(prefix="blipmq-fuzz-"))
    try:
        run = Fuzz(seed, directory)
        run.run(frames)
        return run
    finally:
        shutil.rmtree(directory)

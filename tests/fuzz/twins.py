"""What the fuzzers of all doors share: two equal brokers, one fed whole streams, one crumbs."""

from __future__ import annotations

import random
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

B = TypeVar("B")

DAMAGES = 6
EDGES = (0, 1, 2, 127, 128, 255, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
BYTES = (0, 1, 0x7F, 0x80, 0xFF)


def damage(
    out: bytearray,
    at: int,
    kind: int,
    dice: random.Random,
    others: Sequence[bytes],
    *,
    edges: Sequence[int] = EDGES,
    values: Sequence[int] = BYTES,
    widths: Sequence[int] = (1, 2, 4, 8),
) -> None:
    """One of the six changes that mean something in any protocol, at this place of a frame."""
    if kind == 0:
        out[at] ^= 1 << dice.randrange(8)
    elif kind == 1:
        out[at] = dice.choice(values)
    elif kind == 2:
        width = dice.choice(widths)
        edge = dice.choice(edges) & ((1 << 8 * width) - 1)
        out[at : at + width] = edge.to_bytes(width, "big")
    elif kind == 3:
        del out[at : at + dice.choice((1, 2, 8, 1000))]
    elif kind == 4:
        out[at:at] = dice.randbytes(dice.choice((1, 2, 8, 50)))
    else:
        other = dice.choice(others)
        cut = dice.randrange(len(other))
        out[at:] = other[cut : cut + dice.randrange(1, 400)]


def mutated_frame(
    data: bytes, dice: random.Random, others: Sequence[bytes], *, share: float
) -> bytes:
    """A frame of Kafka's kind, length first; of all of them this `share` is changed.

    Mostly none: a frame that ends the connection hides all that come after it.
    """
    out = bytearray(data)
    changes = dice.choice((1, 1, 2, 4)) if dice.random() < share else 0
    for _ in range(changes):
        if len(out) < 5:
            break
        kind = dice.randrange(DAMAGES + 1)
        at = dice.randrange(4, len(out))
        if kind < DAMAGES:
            damage(out, at, kind, dice, others, widths=(1, 2, 4))
        else:
            out[4:8] = dice.choice(others)[4:8]
    if not changes or dice.random() < 0.9:
        out[:4] = (len(out) - 4).to_bytes(4, "big")
    elif len(out) >= 4:
        out[:4] = dice.choice((0, 1, 1 << 20, (1 << 31) - 1, 1 << 31)).to_bytes(4, "big")
    return bytes(out)


class Fed(Protocol):
    def feed(self, data: bytes) -> None: ...


class Twins(ABC, Generic[B]):
    """Rounds of mutated frames against two brokers, which are made anew when they are worn out."""

    ROUNDS_PER_PAIR: ClassVar = 150

    def __init__(self, seed: int, directory: Path) -> None:
        self.seed = seed
        self.frames = 0
        self.answers = 0
        self.hang_ups = 0
        self.dice = random.Random(seed)
        self.rounds = 0
        self.pair: list[B] = []
        self._directory = directory
        self._paths: list[Path] = []

    @property
    def where(self) -> str:
        return f"seed {self.seed}, round {self.rounds}"

    def run(self, frames: int) -> None:
        try:
            while self.frames < frames:
                if not self.pair or self.rounds % self.ROUNDS_PER_PAIR == 0 or self.worn_out():
                    self._renew()
                self.rounds += 1
                self.round()
        finally:
            self._close()

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What the next pair is given."""

    @abstractmethod
    def opened(self, directory: Path, settings: dict[str, Any]) -> B: ...

    @abstractmethod
    def closed(self, broker: B) -> None: ...

    @abstractmethod
    def worn_out(self) -> bool:
        """Mutated requests create topics: do the brokers have too many?"""

    @abstractmethod
    def round(self) -> None: ...

    def feed_both(self, whole: Fed, crumbs: Fed, data: bytes) -> None:
        whole.feed(data)
        position = 0
        while position < len(data):
            size = self.dice.choice((1, 2, 7, 60, 500, 5000))
            crumbs.feed(data[position : position + size])
            position += size

    def _renew(self) -> None:
        self._close()
        settings = self.settings()
        for _ in range(2):
            self._paths.append(Path(tempfile.mkdtemp(dir=self._directory)))
            self.pair.append(self.opened(self._paths[-1], settings))

    def _close(self) -> None:
        for broker in self.pair:
            self.closed(broker)
        for path in self._paths:
            shutil.rmtree(path)
        self.pair, self._paths = [], []

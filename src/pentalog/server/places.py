"""Places in the line of answers of one connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pentalog.model.types import Piece


class Line(Protocol):
    """Where places are kept."""

    def filled(self, place: LaterPlace, pieces: Sequence[Piece]) -> None:
        """A place has got its answer."""


class LaterPlace:
    """A place in line; knows its pieces once it is filled."""

    __slots__ = ("_line", "pieces")

    def __init__(self, line: Line) -> None:
        self._line: Line | None = line
        self.pieces: Sequence[Piece] | None = None

    def fill(self, *pieces: Piece) -> None:
        line, self._line = self._line, None
        assert line is not None, "a place is filled once"
        line.filled(self, pieces)


class NoPlace:
    """A place behind a hang-up: what it is filled with is dropped."""

    __slots__ = ()

    def fill(self, *pieces: Piece) -> None: ...

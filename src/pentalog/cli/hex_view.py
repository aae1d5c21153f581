"""Bytes as people read them: position, sixteen bytes, the letters among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_WIDTH: Final = 16


def lines(data: bytes | memoryview, *, start: int = 0, indent: str = "") -> Iterator[str]:
    """`start` is what the first byte's position is said to be."""
    for at in range(0, len(data), _WIDTH):
        row = bytes(data[at : at + _WIDTH])
        halves = f"{row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}"
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{indent}{start + at:08x}  {halves}  |{letters}|"

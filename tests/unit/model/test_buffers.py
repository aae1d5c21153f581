"""Copies of large buffers have the bytes of their parts, whatever memory they are in."""

from __future__ import annotations

import random

import pytest

from pentalog.model.buffers import LARGE_BYTES, join_buffers

NOISE = random.Random(7).randbytes(LARGE_BYTES)


@pytest.mark.parametrize("size", [0, 1, LARGE_BYTES - 3, LARGE_BYTES])
def test_parts_are_joined(size: int) -> None:
    parts = (b"ab", memoryview(NOISE)[:size], bytearray(b"c"), b"")
    joined = join_buffers(*parts)
    assert type(joined) is bytearray
    assert joined == b"ab" + NOISE[:size] + b"c"


def test_the_copy_is_independent_of_its_source() -> None:
    source = bytearray(NOISE)
    copied = join_buffers(source)
    source[:4] = b"\0\0\0\0"
    assert copied == NOISE


def test_nothing_is_joined_to_nothing() -> None:
    assert join_buffers() == b""

"""Copies of large buffers, in memory that is quick to fill."""

from __future__ import annotations

from typing import Final

from pentalog.kernels import Buffer, new_buffer

LARGE_BYTES: Final = 4 << 20
"""Below this size, how memory is mapped makes no difference."""


def join_buffers(*parts: Buffer) -> bytearray:
    """Return the bytes of all parts, one after another."""
    size = sum(map(len, parts))
    if size < LARGE_BYTES:
        return bytearray().join(parts)
    joined = new_buffer(size)
    view = memoryview(joined)
    start = 0
    for part in parts:
        end = start + len(part)
        view[start:end] = part
        start = end
    return joined

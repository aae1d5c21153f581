"""Memory for large results."""

from __future__ import annotations


def new_buffer(size: int) -> bytearray:
    """A bytearray of `size` bytes with any content, to be filled by the caller.

    The compiled twin writes nothing: a large buffer is filled once, not zeroed before.
    """
    if size < 0:
        raise ValueError(f"a buffer of {size} bytes")
    return bytearray(size)

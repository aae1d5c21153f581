"""Memory for large results."""

from __future__ import annotations


def new_buffer(size: int) -> bytearray:
    """A bytearray of `size` bytes with any content, to be filled by the caller.

    The compiled twin writes nothing and asks for huge pages under a large buffer: to map one of
    16 MiB page by page takes several times as long as to copy into it.
    """
    if size < 0:
        raise ValueError(f"a buffer of {size} bytes")
    return bytearray(size)

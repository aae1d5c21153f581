"""What several answers of a cluster have in common: topics, and fields of their partitions."""

from __future__ import annotations

import struct
from typing import Any, Final

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")


def read_partitions(
    data: memoryview, position: int, fields: struct.Struct
) -> tuple[list[tuple[str, tuple[Any, ...]]], int]:
    """(topic and fields of every partition, position behind them).

    Raises `struct.error` or `ValueError` if there is no such thing.
    """
    found: list[tuple[str, tuple[Any, ...]]] = []
    (topics,) = _I32.unpack_from(data, position)
    position += _I32.size
    for _ in range(topics):
        (size,) = _I16.unpack_from(data, position)
        position += _I16.size
        topic = str(data[position : position + size], "utf-8")
        position += size
        (parts,) = _I32.unpack_from(data, position)
        position += _I32.size
        for _ in range(parts):
            found.append((topic, fields.unpack_from(data, position)))
            position += fields.size
    return found, position

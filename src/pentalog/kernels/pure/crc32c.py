"""The checksum of record batches."""

from __future__ import annotations

from crc32c import crc32c as _crc32c

from pentalog.kernels.facts import Buffer


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C of `data`, going on from `value`."""
    return int(_crc32c(memoryview(data), value))

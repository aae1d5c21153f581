"""The checksum of record batches."""

from __future__ import annotations

from pentalog.kernels.facts import Buffer


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C of `data`, going on from `value`."""
    # Late: importing the package takes longer than all of ours, and the compiled twin does not
    # need it.
    from crc32c import crc32c as package

    return int(package(memoryview(data), value))

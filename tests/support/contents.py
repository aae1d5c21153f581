"""Batches as they are in a segment, and values that hold such batches."""

from __future__ import annotations

from tests.simulation.disk import PAGE

from pentalog import kernels
from pentalog.model import batch
from pentalog.model.types import Record


def batch_at(offset: int, *values: bytes) -> bytes:
    """A batch whose first record has an offset."""
    data = batch.build([Record(value) for value in values], timestamp_ms=1_700_000_000_000)
    kernels.stamp(memoryview(data), 0, len(data), offset, 0)
    return bytes(data)


def nested(offset: int) -> bytes:
    """A value with batches for readers that search; they begin on the value's second page."""
    return b"." * PAGE + batch_at(offset, b"phantom") * 3 + b"." * (2 * PAGE)

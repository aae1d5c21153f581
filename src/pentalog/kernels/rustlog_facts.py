"""What the RustLog kernels give back, named; both twins return these."""

from __future__ import annotations

from typing import NamedTuple

from pentalog.kernels.facts import Facts


class RustlogRun(NamedTuple):
    """Neighbouring binary Produce requests for one partition, their records as batches."""

    topic: bytes
    partition: int
    end: int
    """Position behind the last frame taken."""
    counts: bytes
    """Records of each request, native u32."""
    batches: bytearray
    facts: Facts


class RustlogFetched(NamedTuple):
    """A Fetch reply in either dialect."""

    frame: bytes
    """The whole frame, its length in front."""
    records: int
    payload_bytes: int
    next_offset: int
    too_large: int
    """Offset of the first record if that alone does not fit a frame, else -1."""

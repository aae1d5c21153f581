"""What kernels give back, named; both twins return these."""

from __future__ import annotations

from typing import NamedTuple


class Facts(NamedTuple):
    """What `check_batches` learned of a run of whole batches."""

    flaw: int
    """0 if every batch is sound, else one of the `FLAW_*` numbers."""
    flaw_position: int
    """Where the first flawed batch starts."""
    batches: int
    offsets: int
    """Offsets the run takes: the sum of (last offset delta + 1)."""
    records: int
    batch_bytes_max: int
    """Size of the largest batch, its 12 bytes of framing included."""
    timestamp_max: int
    attributes_any: int
    """All attribute words, or-ed."""
    codecs: int
    """Bit n is set if some batch has compression codec n."""
    producer_id: int
    producer_epoch: int
    sequence_first: int
    sequence_last: int
    """Producer fields of the run; -1 if it has none.  Valid only if `chained`."""
    chained: bool
    """All batches are of one producer and life, and each sequence follows the one before."""


class Scan(NamedTuple):
    """What `scan_batches` found in a piece of a segment."""

    position: int
    """Where it stopped: the end of the last sound batch."""
    next_offset: int
    timestamp_max: int
    timestamp_max_offset: int
    """Offset of the last record of the batch that holds the largest timestamp."""
    batches: int
    flaw: int
    """0 if it reached the end; `FLAW_SHORT` if the rest is the beginning of a batch."""
    entries: bytes
    """Offset index entries, packed as on disk: (relative last offset, position), big-endian i32."""
    time_entries: bytes
    """Time index entries, packed as on disk: (timestamp i64, relative offset i32)."""
    producers: list[tuple[int, int, int, int, int, int, int, int]]
    """Per batch of an idempotent producer: (producer id, epoch, first sequence, last sequence,
    base offset, last offset, attributes, position).  Empty unless asked for."""


class ProduceRun(NamedTuple):
    """Neighbouring Kafka Produce requests that ask the same thing of the same partition."""

    version: int
    acks: int
    topic: bytes
    """The name, or from version 13 on the 16 bytes of the id."""
    partition: int
    start: int
    end: int
    """Where the batches lie in the buffer, moved together if there were several."""
    requests: bytes
    """Per request: correlation id and offsets taken, native i32 each."""
    facts: Facts


class Frames(NamedTuple):
    """What `split_produce` made of a socket buffer."""

    items: list[ProduceRun | tuple[int, int]]
    """In order: runs of Produce, and (start, end) of every other frame, length not included."""
    used: int
    wanted: int
    """Total size of the frame that is incomplete, 0 if its length has not arrived."""
    refused: int
    """The length that cannot be accepted, 0 if none; the stream ends there."""

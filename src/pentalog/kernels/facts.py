"""What kernels give back, named; both twins return these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from mmap import mmap

Buffer: TypeAlias = "bytes | bytearray | memoryview | mmap"
"""Anything that lends its bytes; a position is an index into all of it."""

FLAW_NONE: Final = 0
FLAW_SHORT: Final = 1
"""The bytes end inside a batch."""
FLAW_LENGTH: Final = 2
"""The length cannot be that of a batch."""
FLAW_MAGIC: Final = 3
"""Not record batch v2: an older format, or no batch at all."""
FLAW_CHECKSUM: Final = 4
FLAW_COUNT: Final = 5
"""The number of records does not agree with the offsets taken."""
FLAW_CODEC: Final = 6
FLAW_OFFSET: Final = 7
"""Offsets go back, or leave the range a segment can hold."""
FLAW_RECORD: Final = 8
"""A record inside the payload is malformed."""


class Malformed(ValueError):
    """The records of a batch cannot be read."""


class BatchHeader(NamedTuple):
    """The 61 bytes before the records of a batch."""

    base_offset: int
    size: int
    """Of the whole batch, its 12 bytes of framing included."""
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int


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
    """Of the newest record; of compressed batches what their headers say."""
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
    restamp: bool = False
    """The header of some uncompressed batch has another newest timestamp than its records."""


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
    base offset, last offset, attributes, position in the buffer).  Empty unless asked for."""
    bytes_since_entry: int
    """Bytes walked since the last index entry, to be given to the next walk."""
    timestamp_entered: int
    """The newest timestamp in the time index, to be given to the next walk; -1 if none."""


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

"""What the Cursus kernels give back, named; both twins return these."""

from __future__ import annotations

from typing import Final, NamedTuple

CURSUS_SOUND: Final = 0
CURSUS_SHORT: Final = 1
"""The frame ends inside its header."""
CURSUS_TOPIC: Final = 2
"""The topic's length is none a topic can have."""
CURSUS_PARTITION: Final = 3
"""The partition is written in neither dialect's way."""
CURSUS_COUNT: Final = 4
"""The number of messages is negative or larger than accepted."""
CURSUS_MESSAGE: Final = 5
"""The frame ends inside a message."""
CURSUS_REST: Final = 6
"""Bytes are left behind the last message."""

CURSUS_MESSAGES_MAX: Final = 100_000


class CursusFrame(NamedTuple):
    """A batch as a Cursus producer sends it, walked to its end."""

    flaw: int
    """0 if it is sound, else one of the `CURSUS_*` numbers; the rest then means nothing."""
    document: bool
    """Written as the document has it: partition and length of acks as 16-bit strings."""
    topic: bytes
    partition: int
    acks: bytes
    idempotent: bool
    messages_start: int
    """Position of the first message."""
    records: int
    producer: bytes
    epoch: int
    """Producer and epoch of the last message."""
    seq_first: int
    seq_last: int
    one_producer: bool
    """All messages name the same producer and epoch."""
    break_after: int
    break_got: int
    """The first two neighbouring sequence numbers that do not follow each other; 0, 0 if all do."""
    message_bytes_max: int
    """Size of the largest message as it was sent."""


class CursusPage(NamedTuple):
    """Records as a Cursus reader gets them."""

    frame: bytearray
    """A whole frame, its length included."""
    records: int
    next_offset: int
    """Behind the last record looked at; -1 if the batches were looked at to their end."""
    unshown_offset: int
    """The record the page stops before because no message can hold it; -1 if there is none."""

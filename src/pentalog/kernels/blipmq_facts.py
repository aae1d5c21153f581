"""What the kernels of BlipMQ and of leased deliveries give back, named; both twins return these."""

from __future__ import annotations

from typing import Final, NamedTuple

from pentalog.kernels.facts import Facts

ATTEMPT_MAX: Final = 99
"""Largest attempt a state can tell; deliveries after it count as this one."""
AGAIN: Final = 0x80
"""Added to an attempt: its lease has run out, the record waits to be delivered again."""
DEAD_ATTEMPTS: Final = 0xF0
DEAD_EXPIRED: Final = 0xF1
DEAD_OVERFLOW: Final = 0xF2
DEAD_TOO_LARGE: Final = 0xF3
"""The record is to be set aside, for this reason.

The states of a window are one byte an offset: 0 is settled, 1 to `ATTEMPT_MAX` is on lease for
that many times.
"""

REFUSED_LENGTH: Final = 1
REFUSED_TYPE: Final = 2


class PublishRun(NamedTuple):
    """Neighbouring PUBLISH frames of one topic and one quality, as a record batch."""

    qos: int
    topic: bytes
    start: int
    end: int
    """Where the frames lie in the buffer."""
    batch: bytearray
    facts: Facts
    correlations: bytes
    """Their correlation ids, 8 bytes each as on the wire."""


class NumberRun(NamedTuple):
    """Neighbouring POLL or ACK frames of one subscription."""

    kind: int
    """The frame type, 9 or 5."""
    subscription: int
    start: int
    end: int
    correlations: bytes
    """Their correlation ids, 8 bytes each as on the wire; an ACK's is its delivery tag."""


class BlipFrames(NamedTuple):
    """What `split_blipmq` made of a socket buffer."""

    items: list[PublishRun | NumberRun | tuple[int, int]]
    """In order: runs, and (start, end) of every other frame, length not included."""
    used: int
    wanted: int
    """Total size of the frame that is incomplete, 0 if its length has not arrived."""
    refused: int
    """0, `REFUSED_LENGTH` or `REFUSED_TYPE`; the stream ends there."""


class Delivered(NamedTuple):
    """What `deliver_blipmq` made of opened batches."""

    frames: bytes
    polls: int
    """POLLs answered."""
    offset: int
    """The next offset to look at."""
    batch: int
    record: int
    """Where that is: the batch and the record inside it; record 0: at the batch's beginning."""
    states: bytes
    """The state of every offset passed over; empty for deliveries made again."""
    leased: int
    """Records that must be acknowledged."""
    unreadable: int
    """Batches that were passed over because their records cannot be read."""

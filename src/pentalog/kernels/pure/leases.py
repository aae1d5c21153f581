"""States of deliveries, many at a time.

A delivery tag is (partition << 48) + (offset - first offset of the subscription + 1), so it needs
no table and is the same after a restart.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pentalog.kernels.blipmq_facts import ATTEMPT_MAX
from pentalog.kernels.facts import Buffer


def acknowledge(
    tags: Buffer, windows: Sequence[tuple[int, int, bytearray] | None]
) -> tuple[int, bytes]:
    """(how many were on lease and are settled now, the tags that were not).

    `tags` has 8 bytes each, big-endian.  A window is (the subscription's first offset, the offset
    of the first state, states); `windows` has one for each partition by its number, or None.
    """
    view = memoryview(tags)
    if len(view) % 8:
        raise ValueError(f"{len(view)} bytes are no list of tags of 8 bytes each")
    settled = 0
    unknown = bytearray()
    for (tag,) in struct.iter_unpack(">Q", view):
        partition = tag >> 48
        window = windows[partition] if partition < len(windows) else None
        if window is not None:
            first, floor, states = window
            index = first + (tag & 0xFFFFFFFFFFFF) - 1 - floor
            if 0 <= index < len(states) and 1 <= states[index] <= ATTEMPT_MAX:
                states[index] = 0
                settled += 1
                continue
        unknown += tag.to_bytes(8, "big")
    return settled, bytes(unknown)


def settled_prefix(states: bytearray) -> int:
    """How many states at the beginning are settled."""
    return len(states) - len(states.lstrip(b"\0"))

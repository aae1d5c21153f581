"""What cannot be a batch, although its checksum holds, is stepped over."""

from __future__ import annotations

import struct

import pytest

from pentalog import kernels
from pentalog.log.inspection import inspect
from pentalog.model import batch
from pentalog.model.types import Record


def sound(offset: int) -> bytearray:
    data = batch.build([Record(b"value")], timestamp_ms=1)
    kernels.stamp(data, 0, len(data), offset, 0)
    return data


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("position", "field"),
    [(21, struct.pack(">h", 6)), (57, struct.pack(">i", 99)), (0, struct.pack(">q", 1 << 40))],
    ids=["codec", "count", "offset"],
)
@pytest.mark.parametrize("gaps", [False, True])
def test_a_right_sum_over_impossible_fields_costs_that_batch_only(
    position: int, field: bytes, gaps: bool
) -> None:
    odd = sound(1)
    odd[position : position + len(field)] = field
    struct.pack_into(">I", odd, 17, kernels.crc32c(memoryview(odd)[21:]))
    data = bytes(sound(0) + odd + sound(2) + sound(3))
    found = inspect(data, file_position=0, segment_base=0, next_offset=0, offset_max=3, gaps=gaps)
    assert (found.end, found.next_offset) == (len(data), 4)
    assert [(d.start, d.end) for d in found.damages] == [(len(odd), 2 * len(odd))]


def test_a_batch_with_a_damaged_length_costs_itself_only() -> None:
    batches = [sound(offset) for offset in range(4)]
    batches[1][8] ^= 0x40
    data = bytes(b"".join(batches))
    found = inspect(data, file_position=0, segment_base=0, next_offset=0, offset_max=3)
    size = len(batches[0])
    assert (found.end, found.next_offset) == (len(data), 4)
    assert [(d.start, d.end) for d in found.damages] == [(size, 2 * size)]


@pytest.mark.timeout(300)
def test_a_value_full_of_heads_of_batches_does_not_stop_the_search() -> None:
    """To check the sum of each batch they announce would take minutes."""
    size = 4 << 20
    head = struct.pack(">qiiB", 1, size // 2, 0, 2)
    hostile = batch.build([Record(head * (size // len(head)))], timestamp_ms=1)
    kernels.stamp(hostile, 0, len(hostile), 0, 0)
    hostile[8] ^= 0x40
    data = bytes(hostile + sound(1))
    found = inspect(data, file_position=0, segment_base=0, next_offset=0, offset_max=1)
    assert (found.end, found.next_offset) == (len(data), 2)
    assert [(d.start, d.end) for d in found.damages] == [(0, len(hostile))]

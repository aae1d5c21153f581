"""A damaged batch in what a task reads: the next one is found by its length, never by a search."""

from __future__ import annotations

from tests.support.contents import batch_at

from pentalog.tables.splits import _batch_behind


def test_a_batch_in_a_value_is_not_the_next_one() -> None:
    first = batch_at(0, batch_at(1, b"phantom") * 3)
    data = bytearray(first + batch_at(1, b"real"))
    data[21] ^= 0xFF
    assert _batch_behind(data, 0, 1) == len(first)


def test_damaged_neighbours_are_left_one_by_one() -> None:
    parts = [batch_at(number, b"value") for number in range(4)]
    data = bytearray(b"".join(parts))
    for number in (1, 2):
        data[number * len(parts[0]) + 30] ^= 0xFF
    assert _batch_behind(data, len(parts[0]), 1) == 3 * len(parts[0])


def test_behind_a_damaged_length_there_is_none() -> None:
    first = batch_at(0, batch_at(1, b"phantom") * 3)
    for size in (0, 60, 1 << 30, -5):
        data = bytearray(first + batch_at(1, b"real"))
        data[8:12] = (size - 12).to_bytes(4, "big", signed=True)
        assert _batch_behind(data, 0, 1) == -1

"""Several batches made one, on both twins."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pentalog import kernels
from pentalog.kernels import Malformed
from pentalog.kernels.pure import joining as pure
from pentalog.model import batch, compression
from pentalog.model.types import Record

MANY = 1 << 30
HEADER_BYTES = 61


def built(*values: bytes, timestamp_ms: int = 1_000, **fields: Any) -> bytearray:
    records = [
        Record(value, value[:3] or None, (("h", value),), timestamp_ms + number)
        for number, value in enumerate(values)
    ]
    return batch.build(records, timestamp_ms=timestamp_ms, **fields)


def records_of(data: bytearray) -> list[tuple[int, Record]]:
    return batch.records_of(data, 0, bytes_max=MANY)


def test_all_records_in_one(twin: SimpleNamespace) -> None:
    parts = [
        built(b"a", b"b" * 200, timestamp_ms=5_000),
        built(*(b"%d" % number for number in range(300)), timestamp_ms=4_000_000),
        built(b"early", timestamp_ms=1),
    ]
    whole = bytearray().join(parts)
    joined, end = twin.join_batches(whole, 0, len(whole), MANY)
    assert end == len(whole)
    facts = kernels.check_batches(joined, 0, len(joined))
    assert (facts.flaw, facts.batches, facts.records, facts.offsets) == (0, 1, 303, 303)
    header = kernels.batch_header(joined, 0)
    assert (header.base_timestamp, header.max_timestamp) == (5_000, 4_000_299)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    found = records_of(joined)
    assert [offset for offset, _ in found] == list(range(303))
    assert [record for _, record in found] == [
        record for part in parts for _, record in records_of(part)
    ]


def test_one_stays_as_it_is(twin: SimpleNamespace) -> None:
    only = built(b"a", b"b")
    assert twin.join_batches(only, 0, len(only), 0) == (only, len(only))


def test_as_many_as_fit(twin: SimpleNamespace) -> None:
    parts = [built(bytes(100)) for _ in range(5)]
    whole = bytearray(7) + bytearray().join(parts)
    size = len(parts[0])
    joined, end = twin.join_batches(whole, 7, len(whole), 3 * size)
    assert end == 7 + 3 * size
    assert HEADER_BYTES < len(joined) <= 3 * size
    exact, end = twin.join_batches(whole, 7, len(whole), len(joined))
    assert (exact, end) == (joined, 7 + 3 * size)
    _, end = twin.join_batches(whole, 7, len(whole), len(joined) - 1)
    assert end == 7 + 2 * size


def test_only_what_is_alike(twin: SimpleNamespace) -> None:
    other = built(b"b", transactional=True)
    first = built(b"a")
    whole = first + other
    assert twin.join_batches(whole, 0, len(whole), MANY) == (first, len(first))
    assert twin.join_batches(whole, len(first), len(whole), MANY)[1] == len(whole)


def test_gaps_stay(twin: SimpleNamespace) -> None:
    """Offsets that have no record any more."""
    first = built(b"a")
    first[23:27] = (9).to_bytes(4, "big")
    whole = first + built(b"b")
    joined, _ = twin.join_batches(whole, 0, len(whole), MANY)
    assert [offset for offset, _ in records_of(joined)] == [0, 10]
    assert kernels.batch_header(joined, 0).last_offset_delta == 10


@pytest.mark.parametrize(
    ("at", "byte"), [(8, 0x7F), (11, 0), (16, 1), (23, 0xFF), (57, 0xFF), (60, 2), (61, 0), (64, 6)]
)
def test_what_is_not_sound(twin: SimpleNamespace, at: int, byte: int) -> None:
    whole = built(b"a") + built(b"b")
    whole[len(whole) // 2 + at] = byte
    with pytest.raises(Malformed):
        twin.join_batches(whole, 0, len(whole), MANY)


def test_what_is_compressed(twin: SimpleNamespace) -> None:
    whole = built(bytes(1000), codec=compression.ZSTD)
    with pytest.raises(Malformed):
        twin.join_batches(whole, 0, len(whole), MANY)


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (3, 2), (0, 5), (2, 2)])
def test_ranges(twin: SimpleNamespace, start: int, end: int) -> None:
    with pytest.raises(ValueError, match="not inside"):
        twin.join_batches(bytearray(4), start, end, MANY)


VALUES = st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=4), min_size=1, max_size=4)


@settings(deadline=None, max_examples=300)
@given(
    VALUES,
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=4, max_size=4),
    st.integers(0, 300),
)
@example([[b""]], [(57, 1)], [0, 0, 0, 0], 0).via("more records than there are")
def test_twins_agree(
    values: list[list[bytes]], damage: list[tuple[int, int]], times: list[int], bytes_max: int
) -> None:
    whole = bytearray()
    for part, time in zip(values, times, strict=False):
        made = batch.build([Record(value) for value in part], timestamp_ms=0)
        made[27:35] = time.to_bytes(8, "big", signed=True)
        whole += made
    for at, byte in damage:
        if at < len(whole):
            whole[at] = byte
    outcomes = []
    for module in (pure, importlib.import_module("pentalog.kernels.compiled.joining")):
        try:
            outcomes.append(module.join_batches(whole, 0, len(whole), bytes_max))
        except Malformed as flaw:
            outcomes.append(str(flaw))
    assert outcomes[0] == outcomes[1]

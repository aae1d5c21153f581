"""Columns out of batches: rows, nulls, headers, what is hidden, what is refused."""

from __future__ import annotations

import importlib
import struct
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_samples import batch, patched, resum, stored

from pentalog import kernels
from pentalog.kernels import column_facts as facts
from pentalog.kernels.column_facts import Chunks, Columns
from pentalog.model import batch as batches
from pentalog.model.types import Record

DOORS = (b"kafka", b"fluvio", b"cursus")
EVERYTHING = (
    facts.OFFSETS
    | facts.TIMESTAMPS
    | facts.KEYS
    | facts.VALUES
    | facts.HEADERS
    | facts.DOORS
    | facts.SPANS
)
SMALL = st.none() | st.binary(max_size=12)
RECORDS = st.lists(
    st.builds(
        Record,
        value=SMALL,
        key=SMALL,
        headers=st.lists(
            st.tuples(st.sampled_from(["a", "b", "cursus.seq", ""]), SMALL), max_size=4
        ).map(tuple),
        timestamp_ms=st.integers(0, 1 << 41),
    ),
    min_size=1,
    max_size=12,
)


def decode(twin: Any, data: bytes | bytearray, **options: Any) -> Columns:
    given: dict[str, Any] = {
        "low": 0,
        "high": 1 << 62,
        "columns": EVERYTHING,
        "aborted": b"",
        "picks": (),
        "doors": DOORS,
    }
    found: Columns = twin.decode_columns(data, 0, len(data), **(given | options))
    return found


def numbers(packed: bytearray | None) -> list[int]:
    assert packed is not None
    return list(struct.unpack(f"={len(packed) // 8}q", packed))


def texts(chunks: Chunks | None) -> list[bytes | None]:
    assert chunks is not None
    ends = struct.unpack(f"={len(chunks.offsets) // 4}i", chunks.offsets)
    found: list[bytes | None] = []
    for index, (start, end) in enumerate(pairwise(ends)):
        valid = not chunks.nulls or chunks.validity[index >> 3] >> (index & 7) & 1
        found.append(bytes(chunks.data[start:end]) if valid else None)
    assert found.count(None) == chunks.nulls
    return found


def spans(columns: Columns) -> list[tuple[int, int, int]]:
    flat = iter(numbers(columns.spans))
    return list(zip(flat, flat, flat, strict=True))


def rows(columns: Columns) -> list[tuple[Any, ...]]:
    lists = columns.header_lists
    assert lists is not None
    ends = struct.unpack(f"={len(lists) // 4}i", lists)
    pairs = list(zip(texts(columns.header_names), texts(columns.header_values), strict=True))
    headers = [pairs[start:end] for start, end in pairwise(ends)]
    return list(
        zip(
            numbers(columns.offsets),
            numbers(columns.timestamps),
            texts(columns.keys),
            texts(columns.values),
            headers,
            texts(columns.doors),
            strict=True,
        )
    )


def marked(data: bytearray, position: int, attributes: int) -> bytearray:
    (before,) = struct.unpack_from(">h", data, position + 21)
    struct.pack_into(">h", data, position + 21, before | attributes)
    return resum(data, position)


@settings(max_examples=100, deadline=None)
@given(groups=st.lists(RECORDS, min_size=1, max_size=4), base=st.integers(0, 1 << 40))
def test_rows_are_the_records(groups: list[list[Record]], base: int) -> None:
    data = stored(*(batches.build(group, timestamp_ms=5) for group in groups), base_offset=base)
    flat = [record for group in groups for record in group]
    expected = [
        (
            base + index,
            record.timestamp_ms * 1000,
            record.key,
            record.value,
            [(name.encode(), value) for name, value in record.headers],
            b"kafka",
        )
        for index, record in enumerate(flat)
    ]
    picks = (b"cursus.seq", b"none")
    for twin in twins():
        found = decode(twin, data, picks=picks, low=base)
        assert rows(found) == expected
        assert (found.position, found.next_offset) == (len(data), base + len(flat))
        assert spans(found) == [(facts.SPAN_RECORD, base, base + len(flat))]
        last = [dict(record.headers).get("cursus.seq") for record in flat]
        if any("cursus.seq" in dict(record.headers) for record in flat):
            assert texts(found.picked[0]) == last
        else:
            assert found.picked[0] is None
        assert found.picked[1] is None


def twins() -> list[Any]:
    names = ["pure"] + (["compiled"] if kernels.KERNELS["columns"] == "compiled" else [])
    return [importlib.import_module(f"pentalog.kernels.{name}.columns") for name in names]


def test_only_what_was_asked_for_is_made(twin: SimpleNamespace) -> None:
    found = decode(twin, stored(batch(5)), columns=facts.VALUES)
    assert found.rows == 5
    assert texts(found.values) == [b"v" * 10] * 5
    others = (found.offsets, found.timestamps, found.keys, found.doors, found.header_lists)
    assert others == (None,) * 5


def test_rows_begin_and_end_where_asked(twin: SimpleNamespace) -> None:
    data = stored(batch(4), batch(4), batch(4))
    found = decode(twin, data, low=2, high=7)
    assert numbers(found.offsets) == [2, 3, 4, 5, 6]
    assert (found.batches, found.next_offset) == (2, 8)
    assert found.position == len(data) * 2 // 3
    assert spans(found) == [(facts.SPAN_RECORD, 2, 7)]


def test_control_and_aborted_batches_give_no_rows(twin: SimpleNamespace) -> None:
    plain, taken = batch(2), batch(2, producer_id=7, epoch=0, sequence=0, transactional=True)
    other = batch(2, producer_id=8, epoch=0, sequence=0, transactional=True)
    data = stored(plain, taken, other, batch(1), taken)
    marked(data, len(data) - len(taken) - len(batch(1)), 0x20)
    hidden = struct.pack("=6q", 7, 2, 6, 8, 90, 99)
    found = decode(twin, data, aborted=hidden)
    assert numbers(found.offsets) == [0, 1, 4, 5, 7, 8]
    assert spans(found) == [
        (facts.SPAN_RECORD, 0, 2),
        (facts.SPAN_ABORTED, 2, 4),
        (facts.SPAN_RECORD, 4, 6),
        (facts.SPAN_CONTROL, 6, 7),
        (facts.SPAN_RECORD, 7, 9),
    ]


def test_what_compaction_took_is_a_missing_span(twin: SimpleNamespace) -> None:
    header = kernels.batch_header(stored(batch(3), base_offset=10), 0)
    kept = batch(1)
    thin = batches.rebuild(header, memoryview(kept)[61:], count=1, codec=0)
    data = bytes(thin) + bytes(stored(batch(1), base_offset=20))
    found = decode(twin, data, low=8)
    assert numbers(found.offsets) == [10, 20]
    missing, record = facts.SPAN_MISSING, facts.SPAN_RECORD
    assert spans(found) == [(missing, 8, 10), (record, 10, 11), (missing, 11, 20), (record, 20, 21)]


def test_the_door_is_read_from_the_attributes(twin: SimpleNamespace) -> None:
    data = stored(batch(1), batch(1), batch(1))
    size = len(batch(1))
    marked(data, size, 2 << 8)
    marked(data, 2 * size, 6 << 8)
    assert texts(decode(twin, data).doors) == [b"kafka", b"cursus", b"kafka"]


def test_append_time_stands_for_every_record(twin: SimpleNamespace) -> None:
    data = stored(batch(3))
    kernels.stamp_append_time(data, 0, len(data), 77)
    assert numbers(decode(twin, data).timestamps) == [77_000] * 3


@pytest.mark.parametrize(
    ("change", "flaw"),
    [
        (lambda data: data[:-1], kernels.FLAW_SHORT),
        (lambda data: bytes(data[:-1]) + b"~", kernels.FLAW_CHECKSUM),
        (lambda data: patched(data, 21, ">h", 1), kernels.FLAW_CODEC),
        (lambda data: patched(data, 57, ">i", 99), kernels.FLAW_COUNT),
        (lambda data: patched(data, 57, ">i", 2), kernels.FLAW_RECORD),
        (lambda data: patched(data, 23, ">i", 1), kernels.FLAW_RECORD),
        (lambda data: patched(data, 0, ">q", -5), kernels.FLAW_OFFSET),
        (lambda data: patched(data, 16, ">b", 1), kernels.FLAW_MAGIC),
        (lambda data: patched(data, 61, ">B", 0x7F), kernels.FLAW_RECORD),
    ],
)
def test_a_flawed_batch_leaves_no_row(twin: SimpleNamespace, change: Any, flaw: int) -> None:
    sound = stored(batch(3))
    data = bytes(sound) + bytes(change(stored(batch(3), base_offset=3)))
    found = decode(twin, data, picks=(b"name",))
    assert found.flaw == flaw
    assert found.position == len(sound)
    assert [row[0] for row in rows(found)] == [0, 1, 2]
    assert texts(found.picked[0]) == [None, b"text", None]
    assert spans(found) == [(facts.SPAN_RECORD, 0, 3)]


def test_names_are_bounded(twin: SimpleNamespace) -> None:
    for wrong in (
        {"picks": (b"x",) * 17},
        {"doors": ()},
        {"doors": (b"x" * 8,)},
        {"aborted": b"short"},
    ):
        with pytest.raises(ValueError, match=r"name|aborted"):
            decode(twin, b"", **wrong)


SEGMENT = bytes(
    stored(
        batch(3),
        batch(2, producer_id=4, epoch=0, sequence=9, transactional=True),
        batches.build([Record(None, None, (("a", None), ("a", b"1")))], timestamp_ms=3),
        batch(1),
        base_offset=20,
    )
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(SEGMENT)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    if draw(st.booleans()):
        position = 0
        while position + 61 <= len(data) and data[position + 16] == 2:
            length = struct.unpack_from(">i", data, position + 8)[0]
            if not 49 <= length <= len(data) - position - 12:
                break
            resum(data, position)
            position += 12 + length
    return bytes(data)


@pytest.mark.skipif(kernels.KERNELS["columns"] != "compiled", reason="not compiled here")
@settings(max_examples=300, deadline=None)
@given(
    data=st.binary(max_size=200) | damaged(),
    low=st.integers(0, 30),
    high=st.integers(0, 40) | st.just(1 << 62),
    columns=st.integers(0, EVERYTHING),
    aborted=st.sampled_from([b"", struct.pack("=6q", 3, 0, 9, 4, 22, 24)]),
)
def test_both_twins_make_the_same_of_any_bytes(
    data: bytes, low: int, high: int, columns: int, aborted: bytes
) -> None:
    picks = (b"name", b"a")
    options = {"low": low, "high": high, "columns": columns, "aborted": aborted, "picks": picks}
    one, other = (decode(twin, data, **options) for twin in twins())
    assert one == other

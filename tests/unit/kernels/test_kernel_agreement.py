"""Both twins say the same of any bytes at all."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_samples import batch, produce_frame, resum, stored

from pentalog import kernels
from pentalog.kernels.pure import batch as pure_batch
from pentalog.kernels.pure import produce as pure_produce
from pentalog.kernels.pure import records as pure_records

pytestmark = pytest.mark.skipif(
    "pure" in kernels.KERNELS.values(), reason="the kernels are not compiled here"
)

SEGMENT = stored(
    batch(3), batch(1, producer_id=4, epoch=0, sequence=9), batch(2, codec=1), base_offset=20
)
FRAMES = b"".join(produce_frame(version, bytes(batch(2))) for version in (7, 7, 12, 12, 13))
I64 = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def mutated(draw: st.DrawFn, original: bytes) -> bytearray:
    """`original` with a few bytes replaced by any others, of any number."""
    data = bytearray(original)
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(0, len(data)))
        data[position : position + draw(st.integers(0, 8))] = draw(st.binary(max_size=8))
    return data


def compiled(name: str) -> Any:
    return importlib.import_module(f"pentalog.kernels.compiled.{name}")


def outcome(module: Any, name: str, *arguments: Any, **options: Any) -> Any:
    try:
        return getattr(module, name)(*arguments, **options)
    except kernels.Malformed:
        return "malformed"


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300) | mutated(bytes(SEGMENT)), number=I64, mended=st.booleans())
def test_walks_agree(data: bytes, number: int, mended: bool) -> None:
    copy = bytearray(data)
    if mended and len(copy) > 61 and copy[8:12] == SEGMENT[8:12]:
        resum(copy)
    whole = (copy, 0, len(copy))
    index = {
        "file_position": 0,
        "segment_base": 0,
        "next_offset": 0,
        "index_interval": 50,
        "bytes_since_entry": 0,
        "timestamp_max": -1,
        "timestamp_max_offset": -1,
        "producers": True,
    }
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("check_batches", (), {}),
        ("scan_batches", (), {**index, "verify": True}),
        ("scan_batches", (), {**index, "verify": False}),
        ("find_batch", (), {"offset_min": 1, "offset_max": number}),
        ("locate_offset", (number,), {}),
        ("locate_time", (number,), {}),
        ("attributes_in", (), {}),
        ("fit_batches", (number, 25), {}),
        ("fit_batches", (1_000, number), {}),
    ]
    for name, arguments, options in calls:
        left = outcome(pure_batch, name, *whole, *arguments, **options)
        assert outcome(compiled("batch"), name, *whole, *arguments, **options) == left, name
    if len(copy) >= 61:
        header = pure_batch.batch_header(copy, 0)
        assert compiled("batch").batch_header(copy, 0) == header


@settings(max_examples=200, deadline=None)
@given(
    data=st.binary(max_size=100) | mutated(bytes(SEGMENT[61:200])),
    count=st.integers(-1, 5),
    base=I64,
)
def test_records_agree(data: bytes, count: int, base: int) -> None:
    whole = (data, 0, len(data), count)
    newest = {b"k0": 3, b"k1": 1 << 40}
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("decode_records", (base, base, -1), {}),
        ("keep_newest", (base, base, newest), {"drop_tombstones": True}),
        ("shift_tombstones", (base,), {}),
    ]
    for name, arguments, options in calls:
        left = outcome(pure_records, name, *whole, *arguments, **options)
        assert outcome(compiled("records"), name, *whole, *arguments, **options) == left, name


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=100) | mutated(FRAMES), join_bytes_max=st.integers(0, 400))
def test_frames_agree(data: bytes, join_bytes_max: int) -> None:
    results = []
    for module in (pure_produce, compiled("produce")):
        copy = bytearray(data)
        frames = module.split_produce(
            copy, 0, len(copy), frame_bytes_max=2_000, join_bytes_max=join_bytes_max
        )
        results.append((frames, copy))
    assert results[0] == results[1]


@settings(max_examples=100, deadline=None)
@given(
    records=st.lists(
        st.tuples(
            I64,
            st.none() | st.binary(max_size=20),
            st.none() | st.binary(max_size=200),
            st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
        ),
        max_size=5,
    )
)
def test_encoding_agrees(records: list[Any]) -> None:
    assert compiled("records").encode_records(records) == pure_records.encode_records(records)

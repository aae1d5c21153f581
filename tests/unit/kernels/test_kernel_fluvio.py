"""Fluvio's batches to the log's and back, on both twins."""

from __future__ import annotations

import importlib
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentalog import kernels
from pentalog.kernels import Malformed
from pentalog.kernels.pure import fluvio as pure
from pentalog.model import batch
from pentalog.model.types import Record

HEADER = 57
NO_HEADERS = b"\0"


def theirs(*records: Record, timestamp_ms: int = 1_000) -> bytes:
    built = batch.build(records, timestamp_ms=timestamp_ms)
    return bytes(pure.log_to_fluvio(built, 0, len(built), 0)[0])


def ours(twin: Any, data: bytes, *, counted: bool = True, headers: bytes = NO_HEADERS) -> bytearray:
    built: bytearray = twin.fluvio_to_log(
        data, 0, data, HEADER, len(data), counted=counted, attributes=0x100, headers=headers
    )
    return built


RECORDS = [
    Record(b"one", None, (), 1_000),
    Record(b"", b"", (), 1_004),
    Record(b"x" * 300, b"k" * 70, (), 990),
]


def test_there_and_back(twin: SimpleNamespace) -> None:
    sent = theirs(*RECORDS)
    built = ours(twin, sent)
    assert kernels.check_batches(built, 0, len(built)).flaw == 0
    header = kernels.batch_header(built, 0)
    assert (header.records, header.last_offset_delta, header.attributes) == (3, 2, 0x100)
    assert (header.base_timestamp, header.max_timestamp, header.producer_id) == (1_000, 1_004, -1)
    assert [record for _, record in batch.records_of(built, 0, bytes_max=1 << 20)] == RECORDS
    assert twin.log_to_fluvio(built, 0, len(built), 0) == (bytearray(sent), 3)


def test_offsets_are_positions_whatever_was_sent(twin: SimpleNamespace) -> None:
    record = struct.pack("8B", 14, 0, 0, 6, 0, 2, 97, 0)
    sent = theirs(Record(b"x"))[:HEADER] + struct.pack(">i", 2) + record + record
    built = ours(twin, sent)
    offsets = [offset for offset, _ in batch.records_of(built, 0, bytes_max=1 << 20)]
    assert offsets == [0, 1]


def test_headers_are_given_to_every_record(twin: SimpleNamespace) -> None:
    headers = b"\x02\x20fluvio.schema_id\x0412"
    built = ours(twin, theirs(*RECORDS[:2]), headers=headers)
    for _, record in batch.records_of(built, 0, bytes_max=1 << 20):
        assert record.headers == (("fluvio.schema_id", b"12"),)
    out, count = twin.log_to_fluvio(built, 0, len(built), 0)
    assert count == 2
    assert struct.unpack_from(">h", out, 21) == (0x10,)
    assert struct.unpack_from(">I", out, HEADER) == (12,)


def test_a_change_of_schema_begins_a_batch(twin: SimpleNamespace) -> None:
    schemas = [b"1", b"1", b"2", None, b"nonsense", b"99999999999"]
    records = [
        Record(b"v", None, () if name is None else (("fluvio.schema_id", name), ("other", b"")))
        for name in schemas
    ]
    built = batch.build(records, timestamp_ms=1)
    out, count = twin.log_to_fluvio(built, 0, len(built), 0)
    assert count == 6
    assert starts(out) == [0, 2, 3]


def starts(record_set: bytes | bytearray) -> list[int]:
    """The base offset of each batch."""
    found = []
    at = 0
    while at < len(record_set):
        offset, length = struct.unpack_from(">qi", record_set, at)
        found.append(offset)
        at += 12 + length
    assert at == len(record_set)
    return found


def test_what_lies_before_the_offset_is_left_out(twin: SimpleNamespace) -> None:
    built = batch.build(RECORDS, timestamp_ms=1)
    out, count = twin.log_to_fluvio(built, 0, len(built), 2)
    assert (count, starts(out)) == (1, [2])
    assert twin.log_to_fluvio(built, 0, len(built), 3) == (bytearray(), 0)


def test_append_time_is_everybodys(twin: SimpleNamespace) -> None:
    built = batch.build(RECORDS, timestamp_ms=1)
    struct.pack_into(">h", built, 21, batch.APPEND_TIME)
    struct.pack_into(">q", built, 35, 5_555)
    out, _ = twin.log_to_fluvio(built, 0, len(built), 0)
    assert struct.unpack_from(">qq", out, 27) == (5_555, 5_555)
    again = ours(twin, bytes(out))
    stamps = {record.timestamp_ms for _, record in batch.records_of(again, 0, bytes_max=1 << 20)}
    assert stamps == {5_555}


def test_bare_records(twin: SimpleNamespace) -> None:
    sent = theirs(*RECORDS)
    bare = sent[:HEADER] + sent[HEADER + 4 :]
    assert ours(twin, bare, counted=False) == ours(twin, sent)
    with pytest.raises(Malformed):
        ours(twin, bare)
    with pytest.raises(Malformed):
        ours(twin, sent, counted=False)


def test_every_cut_is_noticed(twin: SimpleNamespace) -> None:
    sent = theirs(*RECORDS[:2])
    for end in range(HEADER, len(sent)):
        with pytest.raises(Malformed):
            ours(twin, sent[:end])
    built = batch.build(RECORDS, timestamp_ms=1)
    for end in range(1, len(built)):
        with pytest.raises(Malformed):
            twin.log_to_fluvio(built[:end], 0, end, 0)


def test_where_records_end(twin: SimpleNamespace) -> None:
    sent = theirs(*RECORDS)
    end = len(sent)
    assert twin.fluvio_end(sent + b"rest", HEADER + 4, end + 4, 3) == end
    assert twin.fluvio_end(sent, HEADER + 4, end, 4) == -1
    assert twin.fluvio_end(sent, 3, end, 0) == 3


def test_ranges_outside_are_our_own_mistakes(twin: SimpleNamespace) -> None:
    sent = theirs(*RECORDS)
    for call in (
        lambda: twin.log_to_fluvio(sent, 0, len(sent) + 1, 0),
        lambda: twin.fluvio_end(sent, -1, 3, 1),
        lambda: twin.fluvio_to_log(
            sent, 999_999, sent, 0, 1, counted=True, attributes=0, headers=b"\0"
        ),
    ):
        with pytest.raises(ValueError, match="not inside"):
            call()


compiled_only = pytest.mark.skipif(
    kernels.KERNELS["fluvio"] != "compiled", reason="the kernel is not compiled here"
)
SENT = theirs(*RECORDS)
BUILT = batch.build(RECORDS, timestamp_ms=1) + batch.build(
    [Record(None, None, (("fluvio.schema_id", b"7"),))], timestamp_ms=2
)


@st.composite
def mutated(draw: st.DrawFn, original: bytes) -> bytes:
    data = bytearray(original)
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(0, len(data)))
        data[position : position + draw(st.integers(0, 8))] = draw(st.binary(max_size=8))
    return bytes(data)


def outcome(module: Any, name: str, *arguments: Any, **options: Any) -> Any:
    try:
        return getattr(module, name)(*arguments, **options)
    except (Malformed, ValueError) as error:
        return type(error)


@compiled_only
@settings(max_examples=300, deadline=None)
@given(
    data=st.binary(max_size=200) | mutated(SENT),
    counted=st.booleans(),
    start=st.integers(-2, 100),
    count=st.integers(-1, 5),
)
def test_the_twins_agree_on_what_comes_in(
    data: bytes, counted: bool, start: int, count: int
) -> None:
    fast = importlib.import_module("pentalog.kernels.compiled.fluvio")
    options = {"counted": counted, "attributes": 0x100, "headers": b"\0"}
    for first in (HEADER, start):
        arguments = (data, 0, data, first, len(data))
        left = outcome(pure, "fluvio_to_log", *arguments, **options)
        assert outcome(fast, "fluvio_to_log", *arguments, **options) == left
    left = outcome(pure, "fluvio_end", data, start, len(data), count)
    assert outcome(fast, "fluvio_end", data, start, len(data), count) == left


@compiled_only
@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200) | mutated(bytes(BUILT)), offset=st.integers(-1, 10))
def test_the_twins_agree_on_what_goes_out(data: bytes, offset: int) -> None:
    fast = importlib.import_module("pentalog.kernels.compiled.fluvio")
    left = outcome(pure, "log_to_fluvio", data, 0, len(data), offset)
    assert outcome(fast, "log_to_fluvio", data, 0, len(data), offset) == left

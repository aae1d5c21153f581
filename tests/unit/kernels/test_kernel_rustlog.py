"""RustLog's requests to batches, and batches to its replies: both twins, any bytes."""

from __future__ import annotations

import importlib
import json
import struct
from base64 import b64decode
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_samples import batch, patched, stored

from pentalog import kernels
from pentalog.kernels.pure import rustlog, rustlog_answers
from pentalog.model import batch as batches_of

ROOM = {"frame_bytes_max": 10 << 20, "run_bytes_max": 1 << 20, "batch_bytes_max": 1 << 20}
STAMP = {"attributes": 3 << 8, "timestamp_ms": 1_700_000_000_123}
SEGMENT = bytes(stored(batch(3), batch(2), base_offset=20))
VALUES = st.lists(st.binary(max_size=200), min_size=1, max_size=8)


NAMES = ("rustlog", "rustlog_answers")


def both(*modules: Any) -> SimpleNamespace:
    return SimpleNamespace(**{name: found for one in modules for name, found in vars(one).items()})


pure = both(rustlog, rustlog_answers)


@pytest.fixture(params=["pure", "compiled"])
def twin(request: pytest.FixtureRequest) -> Any:
    """Only these kernels: they are tested whether or not others are compiled."""
    return pure if request.param == "pure" else compiled()


def compiled() -> Any:
    if any(kernels.KERNELS[name] != "compiled" for name in NAMES):
        pytest.skip("the kernels are not compiled here")
    return both(*(importlib.import_module(f"pentalog.kernels.compiled.{name}") for name in NAMES))


def produce(values: list[bytes], *, topic: bytes = b"demo", partition: int = 0) -> bytes:
    body = struct.pack(">BH", 1, len(topic)) + topic + struct.pack(">II", partition, len(values))
    body += b"".join(struct.pack(">I", len(value)) + value for value in values)
    return struct.pack(">I", len(body)) + body


def values_of(data: bytes | bytearray) -> list[bytes | None]:
    """What the ordinary reader of batches finds, record by record."""
    found: list[bytes | None] = []
    position = 0
    while position < len(data):
        records = batches_of.records_of(data, position, bytes_max=1 << 30)
        assert [offset for offset, _ in records] == list(range(len(records)))
        for _, record in records:
            assert record[1:] == (None, (), STAMP["timestamp_ms"])
            found.append(record.value)
        position += kernels.batch_header(data, position).size
    return found


def take(twin: Any, data: bytes, **options: int) -> kernels.RustlogRun | None:
    found = twin.rustlog_run(data, 0, len(data), **{**ROOM, **STAMP, **options})
    assert found is None or isinstance(found, kernels.RustlogRun)
    return found


def test_neighbours_become_one_batch(twin: Any) -> None:
    first, second = [b"hello", b"", b"x" * 300], [b"more"]
    data = produce(first) + produce(second) + produce([b"other"], partition=1)
    run = take(twin, data)
    assert run is not None
    assert run[:4] == (b"demo", 0, len(data) - len(produce([b"other"], partition=1)), run.counts)
    assert struct.unpack("=2I", run.counts) == (3, 1)
    assert values_of(run.batches) == [*first, *second]
    assert run.facts == kernels.check_batches(run.batches, 0, len(run.batches))
    assert run.facts.batches == 1
    assert kernels.batch_header(run.batches, 0).attributes == 3 << 8


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0",
        produce([b"whole"])[:-1],
        produce([]),
        b"\0\0\0\x01\xff",
        bytes.fromhex("0000000f01000464656d6f00000000ffffffff"),
        bytes.fromhex("0000000d0100ff64656d6f0000000000000000"),
        struct.pack(">I", (10 << 20) + 1) + bytes(20),
    ],
)
def test_what_is_no_sound_produce_is_left(twin: Any, data: bytes) -> None:
    assert take(twin, data) is None
    run = take(twin, produce([b"good"]) + data)
    assert run is not None
    assert run.end == len(produce([b"good"]))


def test_flaws_of_records_are_told_apart(twin: Any) -> None:
    records = struct.pack(">I", 5) + b"hello" + struct.pack(">I", 0)
    for count, flaw in ((0, 0), (1, 0), (2, 0), (3, 1), (0xFFFFFFFF, 1)):
        assert twin.rustlog_flaw(records, 0, len(records), count) == flaw
    assert twin.rustlog_flaw(records, 0, 8, 1) == 2
    assert twin.rustlog_flaw(records, 0, 3, 1) == 1
    with pytest.raises(ValueError):
        twin.rustlog_flaw(records, 5, 4, 1)


def test_runs_end_at_their_size(twin: Any) -> None:
    one = produce([b"x" * 100])
    run = take(twin, one * 5, run_bytes_max=3 * len(one))
    assert run is not None
    assert run.end == 3 * len(one)
    alone = take(twin, one * 5, run_bytes_max=0)
    assert alone is not None
    assert alone.end == len(one)


def test_batches_are_cut_between_requests_where_they_can_be(twin: Any) -> None:
    small, large = [b"s" * 50] * 3, [b"l" * 100] * 20
    run = take(twin, produce(small) * 4 + produce(large), batch_bytes_max=700)
    assert run is not None
    sizes, position = [], 0
    while position < len(run.batches):
        header = kernels.batch_header(run.batches, position)
        sizes.append(header.records)
        assert header.size <= 700
        position += header.size
    assert sizes == [9, 3, 5, 5, 5, 5]
    assert run.facts == kernels.check_batches(run.batches, 0, len(run.batches))
    assert values_of(run.batches) == small * 4 + large


def test_a_value_larger_than_a_batch_may_be_gets_its_own(twin: Any) -> None:
    values = [b"a", b"b" * 500, b"c"]
    counts, data, facts = twin.rustlog_batches([values], batch_bytes_max=100, **STAMP)
    assert counts == struct.pack("=I", 3)
    assert facts.batches == 3
    assert facts.batch_bytes_max > 500
    assert values_of(data) == [b"a", b"b" * 500, b"c"]


def test_only_lists_of_bytes_are_packed(twin: Any) -> None:
    for wrong in ([(b"x",)], [[b"x", "y"]], [[bytearray(b"x")]], ([b"x"],), [[b"x"], None]):
        with pytest.raises(TypeError):
            twin.rustlog_batches(wrong, batch_bytes_max=100, **STAMP)
    for empty in ([], [[]], [[b"x"], []]):
        with pytest.raises(ValueError):
            twin.rustlog_batches(empty, batch_bytes_max=100, **STAMP)


def test_acks(twin: Any) -> None:
    counts = struct.pack("=2I", 3, 2)
    assert twin.rustlog_acks(counts, 7, json=False).hex() == (
        "0000000d01000000000000000700000003" + "0000000d01000000000000000a00000002"
    )
    texts = [
        b'{"type":"ProduceResponse","base_offset":99,"record_count":3}',
        b'{"type":"ProduceResponse","base_offset":102,"record_count":2}',
    ]
    framed = b"".join(struct.pack(">I", len(text)) + text for text in texts)
    assert twin.rustlog_acks(counts, 99, json=True) == framed
    with pytest.raises(ValueError):
        twin.rustlog_acks(counts, -1, json=True)
    with pytest.raises(ValueError):
        twin.rustlog_acks(b"abc", 0, json=True)


def fetched(twin: Any, data: bytes, offset: int = 0, **options: Any) -> kernels.RustlogFetched:
    asked = {"end_offset": 1 << 62, "empty_offset": offset, "bytes_max": 1 << 20}
    asked |= {"frame_bytes_max": 10 << 20, "json": False, **options}
    found = twin.rustlog_fetched(data, offset, **asked)
    assert isinstance(found, kernels.RustlogFetched)
    assert struct.unpack(">I", found.frame[:4])[0] == len(found.frame) - 4
    return found


def test_fetch_in_json(twin: Any) -> None:
    found = fetched(twin, SEGMENT, 21, json=True)
    said = json.loads(found.frame[4:])
    assert (found.records, found.payload_bytes, found.next_offset) == (4, 40, 25)
    assert list(said) == ["type", "records", "next_offset"]
    assert (said["type"], said["next_offset"]) == ("FetchResponse", 25)
    assert [record["offset"] for record in said["records"]] == [21, 22, 23, 24]
    assert [record["timestamp"] for record in said["records"]] == [
        1_001_000,
        1_002_000,
        1_000_000,
        1_001_000,
    ]
    assert {b64decode(record["payload"]) for record in said["records"]} == {b"v" * 10}


@pytest.mark.parametrize("size", range(8))
def test_base64_of_every_length(twin: Any, size: int) -> None:
    value = bytes(range(250, 250 + size)) if size <= 6 else bytes(range(256))
    _, data, _ = twin.rustlog_batches([[value]], batch_bytes_max=1 << 20, **STAMP)
    said = json.loads(fetched(twin, data, json=True).frame[4:])
    assert b64decode(said["records"][0]["payload"], validate=True) == value


def test_budget_counts_twelve_bytes_a_record(twin: Any) -> None:
    for budget, records in ((0, 0), (1, 1), (43, 1), (44, 2), (66, 3), (1 << 20, 5)):
        for as_json in (False, True):
            found = fetched(twin, SEGMENT, 20, bytes_max=budget, json=as_json)
            assert found.records == records
            assert found.next_offset == 20 + records


def test_records_from_the_end_on_are_not_shown(twin: Any) -> None:
    for end in range(18, 27):
        found = fetched(twin, SEGMENT, 20, end_offset=end)
        assert found.records == min(max(end - 20, 0), 5)


def test_replies_fit_the_frame(twin: Any) -> None:
    for as_json in (False, True):
        whole = fetched(twin, SEGMENT, 20, json=as_json)
        for room in range(20, len(whole.frame) + 30):
            found = fetched(twin, SEGMENT, 20, frame_bytes_max=room, json=as_json)
            assert len(found.frame) - 4 <= max(room, 60)
            assert (found.too_large == 20) == (found.records == 0)
        assert found == whole


def test_null_values_and_missing_times(twin: Any) -> None:
    payload, *_ = kernels.encode_records([(-1, b"k", None, ()), (-1, None, b"v", ())])
    data = bytes(patched(bytearray(SEGMENT[:61]) + payload, 8, ">i", 49 + len(payload)))
    data = bytes(patched(bytearray(data), 23, ">iqq", 1, -1, -1))
    data = bytes(patched(bytearray(data), 57, ">i", 2))
    said = json.loads(fetched(twin, data, 20, json=True).frame[4:])
    assert said["records"] == [
        {"offset": 20, "timestamp": 0, "payload": ""},
        {"offset": 21, "timestamp": 0, "payload": "dg=="},
    ]
    stamped = bytearray(data)
    kernels.stamp_append_time(stamped, 0, len(stamped), (1 << 63) - 1)
    said = json.loads(fetched(twin, bytes(stamped), 20, json=True).frame[4:])
    assert said["records"][0]["timestamp"] == (1 << 63) // 1000 * 1000


def test_what_is_sound_before_a_flaw_is_shown(twin: Any) -> None:
    broken = SEGMENT + b"\x01" * 70
    assert fetched(twin, broken, 20).records == 5
    with pytest.raises(kernels.Malformed):
        fetched(twin, b"\x01" * 70)
    outside = patched(bytearray(SEGMENT), 23, ">i", 1)
    assert fetched(twin, bytes(outside), 20).next_offset == 22


@st.composite
def mutated(draw: st.DrawFn, original: bytes) -> bytearray:
    data = bytearray(original)
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(0, len(data)))
        data[position : position + draw(st.integers(0, 8))] = draw(st.binary(max_size=8))
    return data


def outcome(module: Any, name: str, *arguments: Any, **options: Any) -> Any:
    try:
        return getattr(module, name)(*arguments, **options)
    except kernels.Malformed:
        return "malformed"


FRAMES = produce([b"a" * 20, b""]) * 2 + produce([b"c"] * 3, topic=b"other") + produce([b"d"])


@settings(max_examples=300, deadline=None)
@given(
    data=st.binary(max_size=100) | mutated(FRAMES),
    run_bytes_max=st.integers(0, 300),
    batch_bytes_max=st.integers(0, 200),
    frame_bytes_max=st.integers(10, 300),
)
def test_twins_take_the_same_runs(data: bytes, **options: int) -> None:
    arguments = (data, 0, len(data))
    count = options["run_bytes_max"] % 5
    flaw = pure.rustlog_flaw(*arguments, count)
    assert compiled().rustlog_flaw(*arguments, count) == flaw
    left = pure.rustlog_run(*arguments, **STAMP, **options)
    assert compiled().rustlog_run(*arguments, **STAMP, **options) == left


@settings(max_examples=200, deadline=None)
@given(
    requests=st.lists(VALUES, min_size=1, max_size=4),
    batch_bytes_max=st.integers(0, 1000),
    base=st.integers(0, (1 << 62)),
)
def test_twins_pack_the_same(requests: list[Any], batch_bytes_max: int, base: int) -> None:
    options = {**STAMP, "batch_bytes_max": batch_bytes_max}
    left = pure.rustlog_batches(requests, **options)
    assert compiled().rustlog_batches(requests, **options) == left
    counts, data, facts = left
    assert facts == kernels.check_batches(data, 0, len(data))
    assert values_of(data) == [value for values in requests for value in values]
    for as_json in (False, True):
        acks = pure.rustlog_acks(counts, base, json=as_json)
        assert compiled().rustlog_acks(counts, base, json=as_json) == acks


@settings(max_examples=400, deadline=None)
@given(
    data=st.binary(max_size=200) | mutated(SEGMENT),
    offset=st.integers(0, 30) | st.integers(0, (1 << 63) - 1),
    bytes_max=st.integers(-1, 200) | st.just(1 << 62),
    frame_bytes_max=st.integers(0, 400) | st.just(10 << 20),
    end_offset=st.integers(0, 30) | st.just(1 << 62),
    as_json=st.booleans(),
)
def test_twins_fetch_the_same(
    data: bytes, offset: int, bytes_max: int, frame_bytes_max: int, end_offset: int, as_json: bool
) -> None:
    options = {
        "end_offset": end_offset,
        "empty_offset": offset,
        "bytes_max": bytes_max,
        "frame_bytes_max": frame_bytes_max,
        "json": as_json,
    }
    left = outcome(pure, "rustlog_fetched", data, offset, **options)
    assert outcome(compiled(), "rustlog_fetched", data, offset, **options) == left

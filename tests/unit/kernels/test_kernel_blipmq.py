"""Frames of BlipMQ to batches, batches to deliveries, and states of deliveries."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentalog import kernels
from pentalog.kernels import NumberRun, PublishRun
from pentalog.kernels.pure import blipmq as pure_blipmq
from pentalog.kernels.pure import blipmq_answers as pure_answers
from pentalog.kernels.pure import leases as pure_leases
from pentalog.model import batch
from pentalog.model.types import Record

NOW = 1_700_000_000_000
SPLIT = {"timestamp_ms": NOW, "frame_bytes_max": 16 << 20, "batch_bytes_max": 1_000_000}
DELIVER: dict[str, Any] = {
    "topic": b"demo",
    "qos": 1,
    "tag_shift": 1,
    "timestamp_min": -(1 << 63),
    "bytes_max": 1 << 20,
    "frame_bytes_max": 16 << 20,
}


def frame(kind: int, correlation: int, payload: bytes = b"") -> bytes:
    head = (9 + len(payload)).to_bytes(4, "big") + bytes((kind,))
    return head + correlation.to_bytes(8, "big") + payload


def publish(message: bytes, *, topic: bytes = b"demo", qos: int = 1, correlation: int = 7) -> bytes:
    return frame(3, correlation, bytes((qos,)) + len(topic).to_bytes(2, "big") + topic + message)


def number(kind: int, subscription: int, correlation: int) -> bytes:
    return frame(kind, correlation, subscription.to_bytes(8, "big"))


def ids(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in numbers)


def stored(*records: list[Record], base_offset: int = 0) -> bytes:
    out = bytearray()
    for part in records:
        built = batch.build(part, timestamp_ms=NOW)
        base_offset = kernels.stamp(built, 0, len(built), base_offset, 0)
        out += built
    return bytes(out)


def numbered(count: int, *, start: int = 0) -> list[Record]:
    return [Record(b"message %d" % (start + place)) for place in range(count)]


def split(twin: SimpleNamespace, data: bytes, **options: Any) -> Any:
    return twin.split_blipmq(data, 0, len(data), **{**SPLIT, **options})


def test_publishes_become_a_batch(twin: SimpleNamespace) -> None:
    data = b"".join(publish(b"m%d" % place, correlation=place) for place in range(300))
    found = split(twin, data)
    (run,) = found.items
    assert isinstance(run, PublishRun)
    assert (run.qos, run.topic, run.start, run.end) == (1, b"demo", 0, len(data))
    assert run.correlations == ids(*range(300))
    assert found.used == len(data)
    assert run.facts == kernels.check_batches(run.batch, 0, len(run.batch))
    records = batch.records_of(run.batch, 0, bytes_max=1 << 20)
    assert records == [(place, Record(b"m%d" % place, None, (), NOW)) for place in range(300)]
    assert kernels.batch_header(run.batch, 0).attributes == 4 << batch.DOOR_SHIFT


def test_quality_0_is_told_in_a_header(twin: SimpleNamespace) -> None:
    (run,) = split(twin, publish(b"", qos=0)).items
    ((_, record),) = batch.records_of(run.batch, 0, bytes_max=1 << 20)
    assert record == Record(b"", None, (("blipmq.qos", b"0"),), NOW)


def test_runs_end_where_something_changes(twin: SimpleNamespace) -> None:
    pieces = [
        publish(b"a"),
        publish(b"b"),
        publish(b"c", qos=0),
        publish(b"d", topic=b"demo2", qos=0),
        number(9, 5, 1),
        number(9, 5, 2),
        number(9, 6, 3),
        number(5, 6, 4),
        frame(7, 1),
        number(5, 6, 5),
        publish(b"e"),
    ]
    found = split(twin, b"".join(pieces)).items
    kinds = [
        (item.topic, item.qos, item.facts.records)
        if isinstance(item, PublishRun)
        else (item.kind, item.subscription, len(item.correlations) // 8)
        if isinstance(item, NumberRun)
        else item[1] - item[0]
        for item in found
    ]
    assert kinds == [
        (b"demo", 1, 2),
        (b"demo", 0, 1),
        (b"demo2", 0, 1),
        (9, 5, 2),
        (9, 6, 1),
        (5, 6, 1),
        9,
        (5, 6, 1),
        (b"demo", 1, 1),
    ]


def test_a_batch_has_a_largest_size(twin: SimpleNamespace) -> None:
    data = b"".join(publish(bytes(100)) for _ in range(10)) + publish(bytes(5000))
    runs = split(twin, data, batch_bytes_max=500).items
    assert sum(run.facts.records for run in runs) == 11
    assert all(len(run.batch) <= 500 for run in runs[:-1])
    assert runs[-1].facts.records == 1
    assert runs[-1].end == len(data)


@pytest.mark.parametrize(
    "odd",
    [
        frame(3, 1),
        frame(3, 1, b"\x00\x00"),
        frame(3, 1, b"\x01\x00\x00message"),
        frame(3, 1, b"\x02\x00\x01tm"),
        frame(3, 1, b"\x00\x00\x09ab"),
        frame(9, 1, b"\x00"),
        frame(9, 1, bytes(8)),
        frame(9, 1, bytes(9)),
        frame(5, 1, bytes(8)),
        frame(1, 1, b"\x00\x01"),
    ],
)
def test_what_is_no_part_of_a_run(twin: SimpleNamespace, odd: bytes) -> None:
    before = publish(b"x")
    found = split(twin, before + odd + before)
    assert found.items[1] == (len(before) + 4, len(before) + len(odd))
    assert len(found.items) == 3


@pytest.mark.parametrize(
    ("data", "used", "wanted", "refused"),
    [
        (b"", 0, 0, 0),
        (b"\x00\x00\x00", 0, 0, 0),
        (b"\x00\x00\x00\x09", 0, 13, 0),
        (b"\x00\x00\x00\x00", 0, 0, kernels.REFUSED_LENGTH),
        (b"\x00\x00\x00\x08", 0, 0, kernels.REFUSED_LENGTH),
        (b"\x01\x00\x00\x00", 0, 4 + (16 << 20), 0),
        (b"\x01\x00\x00\x01", 0, 0, kernels.REFUSED_LENGTH),
        (b"\xff\xff\xff\xff", 0, 0, kernels.REFUSED_LENGTH),
        (frame(0, 1), 0, 0, kernels.REFUSED_TYPE),
        (frame(7, 1) + frame(10, 1), 13, 0, kernels.REFUSED_TYPE),
    ],
)
def test_ends_of_what_was_received(
    twin: SimpleNamespace, data: bytes, used: int, wanted: int, refused: int
) -> None:
    found = split(twin, data)
    assert (found.used, found.wanted, found.refused) == (used, wanted, refused)


def test_deliveries(twin: SimpleNamespace) -> None:
    data = stored(numbered(3), numbered(2, start=3))
    got = twin.deliver_blipmq(data, 0, 0, 0, 9, ids(10, 11, 12, 13), **DELIVER)
    expected = b"".join(publish(b"message %d" % at, correlation=at + 1) for at in range(4))
    assert got.frames == expected
    assert (got.polls, got.offset, got.states, got.leased) == (4, 4, b"\1\1\1\1", 4)
    rest = twin.deliver_blipmq(data, got.batch, got.record, 4, 9, ids(14, 15), **DELIVER)
    assert rest.frames == publish(b"message 4", correlation=5)
    assert (rest.polls, rest.offset, rest.batch) == (1, 5, len(data))


def test_quality_is_the_lower_of_the_two(twin: SimpleNamespace) -> None:
    zero = Record(b"zero", None, (("other", b"0"), ("blipmq.qos", b"0")))
    data = stored([zero, Record(b"one", None, (("blipmq.qos", b"1"),)), Record(None)])
    got = twin.deliver_blipmq(data, 0, 0, 0, 9, ids(10, 11, 12), **DELIVER)
    assert got.frames == (
        publish(b"zero", qos=0, correlation=10)
        + publish(b"one", correlation=2)
        + publish(b"", correlation=3)
    )
    assert got.states == b"\0\1\1"
    unleased = {**DELIVER, "qos": 0}
    got = twin.deliver_blipmq(data, 0, 0, 1, 9, ids(10, 11, 12), **unleased)
    assert got.frames == publish(b"one", qos=0, correlation=10) + publish(
        b"", qos=0, correlation=11
    )
    assert (got.states, got.leased) == (b"\0\0", 0)


def test_quality_0_that_may_have_been_delivered_is_passed_over(twin: SimpleNamespace) -> None:
    zero = Record(bytes(100), None, (("blipmq.qos", b"0"),), NOW - 10)
    data = stored([zero, Record(b"one"), zero, Record(b"two", None, (("blipmq.qos", b"0"),))])
    options = {**DELIVER, "timestamp_min": NOW, "frame_bytes_max": 60, "doubtful_end": 3}
    got = twin.deliver_blipmq(data, 0, 0, 0, 9, ids(10, 11, 12), **options)
    assert got.frames == publish(b"one", correlation=2) + publish(b"two", qos=0, correlation=11)
    assert (got.states, got.polls, got.offset) == (b"\0\1\0\0", 2, 4)
    barred = {**DELIVER, "zero_end": 1}
    got = twin.deliver_blipmq(data, 0, 0, 0, 9, ids(10, 11, 12, 13), **barred)
    assert (got.states, got.polls, got.offset) == (b"\0\1", 2, 2)
    rest = twin.deliver_blipmq(data, got.batch, got.record, 2, 9, ids(12, 13), **barred)
    assert (rest.states, rest.polls, rest.offset) == (b"", 0, 2)
    rest = twin.deliver_blipmq(data, rest.batch, rest.record, 2, 9, ids(12, 13), **DELIVER)
    assert (rest.states, rest.polls, rest.offset) == (b"\0\0", 2, 4)
    unleased = {**DELIVER, "qos": 0, "doubtful_end": 3}
    got = twin.deliver_blipmq(data, 0, 0, 0, 9, ids(10, 11), **unleased)
    assert got.frames == publish(b"two", qos=0, correlation=10)


def test_gaps_expired_and_too_large_records(twin: SimpleNamespace) -> None:
    old = Record(b"old", timestamp_ms=NOW - 10)
    data = stored([old, Record(bytes(100))], [Record(b"new")], base_offset=5)
    options = {**DELIVER, "timestamp_min": NOW, "frame_bytes_max": 60}
    got = twin.deliver_blipmq(data, 0, 0, 3, 50, ids(1, 2), **options)
    dead = bytes((kernels.DEAD_EXPIRED, kernels.DEAD_TOO_LARGE))
    assert got.states == b"\0\0" + dead + b"\1"
    assert (got.frames, got.offset) == (publish(b"new", correlation=8), 8)


def test_nothing_from_the_stop_on(twin: SimpleNamespace) -> None:
    data = stored(numbered(2), base_offset=10)
    got = twin.deliver_blipmq(data, 0, 0, 3, 8, ids(1), **DELIVER)
    assert (got.frames, got.offset, got.states, got.batch) == (b"", 8, bytes(5), 0)
    got = twin.deliver_blipmq(data, 0, 0, 10, 11, ids(1, 2), **DELIVER)
    assert (got.frames, got.offset) == (publish(b"message 0", correlation=11), 11)


def test_answers_have_a_size(twin: SimpleNamespace) -> None:
    data = stored(numbered(9))
    got = twin.deliver_blipmq(data, 0, 0, 0, 9, ids(*range(9)), **{**DELIVER, "bytes_max": 50})
    assert got.polls == 2


def test_delivered_again(twin: SimpleNamespace) -> None:
    data = stored(numbered(5))
    states = bytearray((1, 0x81, 0, 0x81, 0x82))
    again = {**DELIVER, "again": 0x81, "states": states, "floor": 0}
    got = twin.deliver_blipmq(data, 0, 0, 0, 5, ids(1, 2, 3), **again)
    assert got.frames == publish(b"message 1", correlation=2) + publish(b"message 3", correlation=4)
    assert states == bytearray((1, 2, 0, 2, 0x82))
    assert (got.states, got.offset, got.leased) == (b"", 5, 2)


def test_records_that_cannot_be_read_are_passed_over(twin: SimpleNamespace) -> None:
    data = bytearray(stored(numbered(2), numbered(1, start=2)))
    data[61] = 0xFF
    got = twin.deliver_blipmq(data, 0, 0, 0, 9, ids(1, 2), **DELIVER)
    assert (got.unreadable, got.states) == (1, b"\0\0\1")
    assert got.frames == publish(b"message 2", correlation=3)


def test_refusals(twin: SimpleNamespace) -> None:
    one = frame(6, 1, b"\x01\x90\x00\x04text")
    assert twin.refuse_blipmq(ids(1, 2), 400, b"text") == one + one[:12] + b"\2" + one[13:]
    with pytest.raises(ValueError, match="8 bytes"):
        twin.refuse_blipmq(b"1234567", 400, b"")


def test_acknowledgements(twin: SimpleNamespace) -> None:
    low, high = bytearray((1, 2, 0x81, 0, 0xF0)), bytearray((1,))
    windows = [(100, 100, low), None, (5, 7, high)]
    tags = ids(1, 2, 3, 4, 5, 6, 0, 3 << 48, (1 << 48) + 1, (2 << 48) + 3, (2 << 48) + 2, 1)
    settled, unknown = twin.acknowledge(tags, windows)
    assert settled == 3
    assert unknown == ids(3, 4, 5, 6, 0, 3 << 48, (1 << 48) + 1, (2 << 48) + 2, 1)
    assert (low, high) == (bytearray((0, 0, 0x81, 0, 0xF0)), bytearray(1))
    assert twin.settled_prefix(low) == 2
    assert twin.settled_prefix(high) == 1
    assert twin.settled_prefix(bytearray()) == 0


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (3, 2), (0, 5)])
def test_ranges_outside_the_buffer(twin: SimpleNamespace, start: int, end: int) -> None:
    with pytest.raises(ValueError, match="not inside"):
        twin.split_blipmq(bytes(4), start, end, **SPLIT)


# Both twins say the same of any bytes

FRAMES = b"".join(
    [publish(b"message"), publish(b"", qos=0), number(9, 2, 5), number(5, 2, 5), frame(7, 9)]
)
BATCHES = stored(
    [Record(b"zero", None, (("blipmq.qos", b"0"),)), Record(b"one", b"key")], numbered(3, start=2)
)
compiled_only = pytest.mark.skipif(
    kernels.KERNELS["blipmq"] != "compiled", reason="the kernels are not compiled here"
)


def compiled(name: str) -> Any:
    return importlib.import_module(f"pentalog.kernels.compiled.{name}")


@st.composite
def mutated(draw: st.DrawFn, original: bytes) -> bytes:
    data = bytearray(original)
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(0, len(data)))
        data[position : position + draw(st.integers(0, 8))] = draw(st.binary(max_size=8))
    return bytes(data)


@compiled_only
@settings(max_examples=300, deadline=None)
@given(
    data=mutated(FRAMES) | st.binary(max_size=60),
    frame_bytes_max=st.sampled_from([16 << 20, 20]),
    batch_bytes_max=st.sampled_from([1, 90, 1 << 20]),
)
def test_splits_agree(data: bytes, frame_bytes_max: int, batch_bytes_max: int) -> None:
    options = {
        "timestamp_ms": NOW,
        "frame_bytes_max": frame_bytes_max,
        "batch_bytes_max": batch_bytes_max,
    }
    left = pure_blipmq.split_blipmq(data, 0, len(data), **options)
    assert compiled("blipmq").split_blipmq(data, 0, len(data), **options) == left
    for item in left.items:
        if isinstance(item, PublishRun):
            assert item.facts == kernels.check_batches(item.batch, 0, len(item.batch))


@compiled_only
@settings(max_examples=400, deadline=None)
@given(
    data=mutated(BATCHES) | st.binary(max_size=150),
    offset=st.integers(0, 6),
    stop=st.integers(0, 50),
    polls=st.integers(0, 6),
    qos=st.integers(0, 1),
    timestamp_min=st.sampled_from([-(1 << 63), NOW + 1]),
    doubtful_end=st.integers(0, 9),
    zero_end=st.integers(0, 9),
    states=st.none() | st.binary(max_size=8),
)
def test_deliveries_agree(
    data: bytes,
    offset: int,
    stop: int,
    polls: int,
    qos: int,
    timestamp_min: int,
    doubtful_end: int,
    zero_end: int,
    states: bytes | None,
) -> None:
    outcomes = []
    for module in (pure_answers, compiled("blipmq_answers")):
        known = None if states is None else bytearray(states)
        options = {**DELIVER, "qos": qos, "timestamp_min": timestamp_min, "frame_bytes_max": 30}
        options |= {"doubtful_end": doubtful_end, "zero_end": zero_end}
        if known is not None:
            options |= {"again": 0x81, "states": known, "floor": 1}
        got = module.deliver_blipmq(data, 0, 0, offset, stop, ids(*range(polls)), **options)
        outcomes.append((got, known))
    assert outcomes[0] == outcomes[1]
    assert offset <= outcomes[0][0].offset <= max(offset, stop)


@compiled_only
@given(
    tags=st.lists(st.integers(0, 12) | st.integers(0, (1 << 64) - 1)),
    states=st.binary(max_size=12),
    first=st.integers(0, 3),
)
def test_acknowledgements_agree(tags: list[int], states: bytes, first: int) -> None:
    outcomes = []
    for module in (pure_leases, compiled("leases")):
        known = bytearray(states)
        settled = module.acknowledge(ids(*tags), [(first, 2, known), None])
        outcomes.append((settled, known, module.settled_prefix(known)))
    assert outcomes[0] == outcomes[1]

"""Records inside a payload, against the builders and readers of two clients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kernel_samples import batch

from pentalog.kernels import FLAW_COUNT, FLAW_NONE, FLAW_RECORD, Malformed
from pentalog.kernels.pure import records as pure
from pentalog.model.batch import build
from pentalog.model.types import Record

RECORDS = [
    (1_000, b"key", b"value", [("name", b"text"), ("empty", b""), ("null", None)]),
    (1_500, None, b"", []),
    (900, b"", None, [("größe", b"\xff" * 200)]),
    (1 << 45, b"k" * 1_000, b"v" * 70_000, []),
]
EVENTS = st.lists(
    st.tuples(
        st.integers(0, 1 << 50),
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=9)), max_size=3),
    ),
    min_size=1,
    max_size=12,
)


def built(builder: type, records: list[Any]) -> bytearray:
    """The payload as another library encodes it."""
    maker = builder(2, 0, False, -1, -1, -1, 1 << 24)
    for index, (timestamp, key, value, headers) in enumerate(records):
        maker.append(index, timestamp, key, value, headers)
    return bytearray(maker.build())[61:]


@pytest.mark.parametrize("builder", [DefaultRecordBatchBuilder, KafkaPythonBuilder])
def test_encodes_as_clients_do(twin: SimpleNamespace, builder: type) -> None:
    payload, base_timestamp, timestamp_max = twin.encode_records(RECORDS)
    assert payload == built(builder, RECORDS)
    assert isinstance(payload, bytearray)
    assert (base_timestamp, timestamp_max) == (1_000, 1 << 45)


@settings(max_examples=60, deadline=None)
@given(events=EVENTS)
def test_any_records_encode_as_a_client_does(events: list[Any]) -> None:
    payload, base_timestamp, timestamp_max = pure.encode_records(events)
    assert payload == built(KafkaPythonBuilder, events)
    assert base_timestamp == events[0][0]
    assert timestamp_max == max(event[0] for event in events)


def test_decodes_what_it_encoded(twin: SimpleNamespace) -> None:
    payload, base_timestamp, _ = twin.encode_records(RECORDS)
    data = b"??" + payload + b"!"
    decoded = twin.decode_records(data, 2, len(data) - 1, 4, 70, base_timestamp, -1)
    assert decoded == [
        (70 + index, timestamp, key, value, tuple(headers))
        for index, (timestamp, key, value, headers) in enumerate(RECORDS)
    ]


def test_clients_read_what_we_build(twin: SimpleNamespace) -> None:
    data = build(
        [Record(value, key, tuple(headers), time) for time, key, value, headers in RECORDS],
        timestamp_ms=5,
    )
    expected = [(time, key, value, list(headers)) for time, key, value, headers in RECORDS]
    for reader in (DefaultRecordBatch, KafkaPythonBatch):
        records = reader(bytes(data))
        assert records.validate_crc()
        read = [(one.timestamp, one.key, one.value, list(one.headers)) for one in records]
        assert read == expected
    payload = twin.encode_records(RECORDS)[0]
    assert data[61:] == payload


def test_append_time_replaces_all(twin: SimpleNamespace) -> None:
    payload, base_timestamp, _ = twin.encode_records(RECORDS)
    decoded = twin.decode_records(payload, 0, len(payload), 4, 0, base_timestamp, 77)
    assert {record[1] for record in decoded} == {77}


def test_no_records(twin: SimpleNamespace) -> None:
    assert twin.encode_records([]) == (bytearray(), -1, -1)
    assert twin.decode_records(b"", 0, 0, 0, 0, 0, -1) == []
    assert twin.check_records(b"", 0, 0, 0) == (FLAW_NONE, 0, 0, 0)


def test_header_names_of_any_bytes_survive(twin: SimpleNamespace) -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    payload, _, _ = twin.encode_records([(0, None, None, [(name, b"x")])])
    assert b"\xff\xfe" in payload
    decoded = twin.decode_records(payload, 0, len(payload), 1, 0, 0, -1)
    assert decoded[0][4] == ((name, b"x"),)


def test_keys_may_be_any_bytes_but_no_text_or_number(twin: SimpleNamespace) -> None:
    plain = twin.encode_records([(0, b"key", b"value", [])])
    other = twin.encode_records([(0, bytearray(b"key"), memoryview(b"value"), ())])
    assert plain == other
    for wrong in ("text", 5):
        with pytest.raises(TypeError):
            twin.encode_records([(0, wrong, b"", [])])


def test_times_beyond_64_bits_are_our_mistake(twin: SimpleNamespace) -> None:
    with pytest.raises((ValueError, OverflowError)):
        twin.encode_records([(1 << 63, None, None, [])])


def test_hostile_deltas_wrap(twin: SimpleNamespace) -> None:
    payload, _, _ = twin.encode_records([(0, None, None, []), ((1 << 63) - 1, None, None, [])])
    decoded = twin.decode_records(payload, 0, len(payload), 2, (1 << 63) - 1, 1 << 62, -1)
    assert decoded[1][:2] == (-(1 << 63), -(1 << 63) + (1 << 62) - 1)


@pytest.mark.parametrize("count", [0, 3, 5])
def test_a_wrong_count_is_malformed(twin: SimpleNamespace, count: int) -> None:
    payload, _, _ = twin.encode_records(RECORDS)
    arguments = (payload, 0, len(payload), count)
    with pytest.raises(Malformed):
        twin.decode_records(*arguments, 0, 0, -1)
    with pytest.raises(Malformed):
        twin.newest_keys(*arguments, 0, {})
    with pytest.raises(Malformed):
        twin.keep_newest(*arguments, 0, 0, {}, drop_tombstones=False)
    assert twin.check_records(*arguments)[0] in (FLAW_COUNT, FLAW_RECORD)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\x00",
        b"\xff" * 11,
        b"\x02\x00",
        b"\x0e\x00\x00\x00\x01\x01",
        b"\x0c\x00\x00\x00\x01\x01\x00\x00",
        b"\x0e\x00\x00\x00\x01\x01\x00\x00",
        b"\x0c\x00\x00\x00\x08\x01\x00",
        b"\x0c\x00\x00\x00\x01\x01\x01",
        b"\x0c\x00\x00\x00\x01\x01\x02",
        b"\x10\x00\x00\x00\x01\x01\x02\x01\x01",
        b"\x0c\x00\x00\x02\x01\x01\x00",
    ],
    ids=[
        "nothing",
        "no length",
        "endless number",
        "only attributes",
        "shorter than it says",
        "bytes behind it",
        "bytes inside it",
        "key beyond the end",
        "negative headers",
        "header missing",
        "header without name",
        "offset out of order",
    ],
)
def test_malformed_records(twin: SimpleNamespace, record: bytes) -> None:
    assert twin.check_records(record, 0, len(record), 1)[0] in (FLAW_COUNT, FLAW_RECORD)
    if record[3:4] != b"\x02":
        with pytest.raises(Malformed):
            twin.decode_records(record, 0, len(record), 1, 0, 0, -1)


def test_check_counts_keys_and_times(twin: SimpleNamespace) -> None:
    payload, _, _ = twin.encode_records(RECORDS)
    checked = twin.check_records(payload, 0, len(payload), 4)
    assert checked == (FLAW_NONE, 1, -100, (1 << 45) - 1_000)
    falling, _, _ = twin.encode_records([(9, None, None, []), (5, None, None, [])])
    assert twin.check_records(falling, 0, len(falling), 2) == (FLAW_NONE, 2, -4, 0)
    assert twin.check_records(payload, 0, len(payload), -1)[0] == FLAW_COUNT
    client = batch(20)
    assert twin.check_records(client, 61, len(client), 20) == (FLAW_NONE, 0, 0, 19)


def compacted(twin: SimpleNamespace, newest: dict[bytes, int], **options: bool) -> list[Any]:
    events = [
        (10, b"a", b"1", []),
        (20, b"b", b"2", [("h", b"x")]),
        (50, None, b"3", []),
        (40, b"a", b"4", []),
        (30, b"b", None, []),
    ]
    payload, base_timestamp, _ = twin.encode_records(events)
    kept, count, timestamp_max = twin.keep_newest(
        payload, 0, len(payload), 5, 100, base_timestamp, newest, **options
    )
    decoded = twin.decode_records(kept, 0, len(kept), count, 100, base_timestamp, -1)
    assert timestamp_max == max((record[1] for record in decoded), default=-1)
    return [(record[0], record[2], record[3]) for record in decoded]


def test_compaction_keeps_the_newest(twin: SimpleNamespace) -> None:
    payload, _, _ = twin.encode_records(
        [(0, b"a", b"1", []), (0, None, b"", []), (0, b"a", b"", [])]
    )
    newest: dict[bytes, int] = {b"old": 1}
    twin.newest_keys(payload, 0, len(payload), 3, 100, newest)
    assert newest == {b"old": 1, b"a": 102}
    last = {b"a": 103, b"b": 104}
    assert compacted(twin, last, drop_tombstones=False) == [(103, b"a", b"4"), (104, b"b", None)]
    assert compacted(twin, last, drop_tombstones=True) == [(103, b"a", b"4")]
    later = {b"a": 200, b"b": 200}
    assert compacted(twin, later, drop_tombstones=False) == []


def test_tombstones_move_to_another_base_timestamp(twin: SimpleNamespace) -> None:
    times = (1_700_000_000_000, 1_699_999_999_999, -1, 0, 1 << 62)
    events = [
        (time, b"k%d" % number, None if number == 3 else b"v", [("h", b"x")])
        for number, time in enumerate(times)
    ]
    payload, base, _ = twin.encode_records(events)
    for horizon in (1_700_086_400_000, 0, base):
        shifted = twin.shift_tombstones(payload, 0, len(payload), 5, base - horizon)
        before = twin.decode_records(payload, 0, len(payload), 5, 7, base, -1)
        assert twin.decode_records(shifted, 0, len(shifted), 5, 7, horizon, -1) == before
    plain, base, _ = twin.encode_records([(5, b"k", b"", []), (6, None, b"v", [])])
    assert twin.shift_tombstones(plain, 0, len(plain), 2, 100) is None
    for count in (4, 6):
        with pytest.raises(Malformed):
            twin.shift_tombstones(payload, 0, len(payload), count, 1)


def test_compaction_keeps_what_the_map_does_not_cover(twin: SimpleNamespace) -> None:
    assert [offset for offset, _, _ in compacted(twin, {}, drop_tombstones=False)] == [
        100,
        101,
        103,
        104,
    ]

"""Reading command lines and laying out records, without a broker."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner import murmur2 as reference_murmur2

from pentalog.cli import consume, produce
from pentalog.cli.client import EARLIEST, LATEST, parse_server
from pentalog.cli.consume import Last, Moment, parse_where
from pentalog.cli.output import Misused, pairs
from pentalog.model import batch
from pentalog.model.types import Record

NOW_MS = 1_800_000_000_000
RECORDS = st.builds(
    Record,
    value=st.none() | st.binary(max_size=40),
    key=st.none() | st.binary(max_size=40),
    headers=st.lists(
        st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=10)), max_size=3
    ).map(tuple),
    timestamp_ms=st.integers(0, 1 << 45),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", EARLIEST),
        ("end", LATEST),
        ("0", 0),
        ("1234", 1234),
        ("-100", Last(100)),
        ("-1h", Moment(NOW_MS - 3_600_000)),
        ("-90s", Moment(NOW_MS - 90_000)),
        ("-2d", Moment(NOW_MS - 172_800_000)),
        ("1700000000000", Moment(1_700_000_000_000)),
        ("2023-11-14T22:13:20+00:00", Moment(1_700_000_000_000)),
    ],
)
def test_places_to_start(text: str, expected: object) -> None:
    assert parse_where(text, "--from", now_ms=NOW_MS) == expected


@pytest.mark.parametrize("text", ["", "now", "1h", "--1", "-1w", "12:70", "1.5"])
def test_places_nobody_can_mean(text: str) -> None:
    with pytest.raises(Misused, match="--from"):
        parse_where(text, "--from", now_ms=NOW_MS)


@given(RECORDS)
def test_json_loses_nothing(record: Record) -> None:
    for in_base64 in (False, True):
        fields = consume.as_fields("t", 0, 7, record, in_base64=in_base64)
        line = json.dumps(fields).encode()
        assert produce._record_of_json(line, headers=(), in_base64=False) == (record, 0)


@given(st.binary(max_size=50))
def test_equal_keys_meet_where_other_clients_put_them(key: bytes) -> None:
    assert produce.murmur2(key) == reference_murmur2(key) & 0xFFFFFFFF


def test_a_cut_batch_at_the_end_is_left_alone() -> None:
    first = batch.build([Record(b"a"), Record(b"b")], timestamp_ms=5)
    data = bytes(first) + bytes(first)[:-1]
    assert [offset for offset, _ in consume.records_between(data, 0, None)] == [0, 1]
    assert consume.next_offset(data) == 2


def test_records_are_cut_at_both_ends() -> None:
    data = bytes(batch.build([Record(b"%d" % n) for n in range(5)], timestamp_ms=5))
    found = [record.value for _, record in consume.records_between(data, 1, 3)]
    assert found == [b"1", b"2"]


def test_unknown_format_letters_are_refused() -> None:
    with pytest.raises(Misused, match="%x"):
        consume.formatter("t", "%x", in_base64=False)
    with pytest.raises(Misused):
        consume.formatter("t", "%", in_base64=False)


def test_format_shows_nulls_by_length() -> None:
    show = consume.formatter("t", "%K/%S", in_base64=False)
    assert show(0, 0, Record(value=None, key=None)) == b"-1/-1"
    assert show(0, 0, Record(value=b"", key=b"ab")) == b"2/0"


@pytest.mark.parametrize("text", ["", "host", "host:", ":9092", "host:x", "host:0", "host:70000"])
def test_servers_nobody_can_reach(text: str) -> None:
    with pytest.raises(Misused, match="HOST:PORT"):
        parse_server(text)


def test_servers() -> None:
    assert parse_server("localhost:9092") == ("localhost", 9092)
    assert parse_server("[::1]:9092") == ("::1", 9092)


def test_pairs_need_an_equals_sign() -> None:
    assert pairs(["a=1", "b=x=y", "c="], "--set") == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(Misused, match="--set"):
        pairs(["=1"], "--set")


def test_lines_with_keys() -> None:
    record = produce._record_of_line(b"k::v:w", None, b"::", (("h", b"1"),), False)
    assert record == Record(value=b"v:w", key=b"k", headers=(("h", b"1"),))
    with pytest.raises(ValueError, match="between key and value"):
        produce._record_of_line(b"novalue", None, b"::", (), False)

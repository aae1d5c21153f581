"""Batches with a delete horizon instead of their first timestamp: every reader sees the same."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from pentalog.kernels import batch_header
from pentalog.kernels.column_facts import TIMESTAMPS
from pentalog.model import batch
from pentalog.model.types import Record

NOW = 1_700_000_000_000
HORIZON = NOW + 24 * 3600 * 1000
TIMES = (NOW, NOW - 365 * 24 * 3600 * 1000, NOW + 5)
RECORDS = [Record(None if time == NOW else b"v", b"k", (), time) for time in TIMES]


@pytest.fixture
def plain() -> bytearray:
    return batch.build(RECORDS, timestamp_ms=NOW)


@pytest.fixture
def marked(twin: SimpleNamespace, plain: bytearray) -> bytearray:
    """The same records after a compaction."""
    header = batch_header(plain, 0)
    payload = plain[batch.HEADER_BYTES :]
    shifted = twin.shift_tombstones(payload, 0, len(payload), len(TIMES), NOW - HORIZON)
    attributes = header.attributes | batch.DELETE_HORIZON
    made = header._replace(base_timestamp=HORIZON, attributes=attributes)
    return batch.rebuild(made, shifted, count=len(TIMES), codec=0)


def test_times_in_columns(twin: SimpleNamespace, plain: bytearray, marked: bytearray) -> None:
    asked: dict[str, Any] = {"low": 0, "high": 9, "columns": TIMESTAMPS, "aborted": b""}
    asked |= {"picks": (), "doors": (b"kafka",)}
    found = [twin.decode_columns(data, 0, len(data), **asked) for data in (plain, marked)]
    assert found[0].timestamps == found[1].timestamps
    assert len(found[0].timestamps) == 8 * len(TIMES)


def test_times_for_rustlog(twin: SimpleNamespace, plain: bytearray, marked: bytearray) -> None:
    asked: dict[str, Any] = {"end_offset": 9, "empty_offset": 0, "bytes_max": 1 << 20}
    asked |= {"frame_bytes_max": 1 << 20, "json": True}
    before, after = (twin.rustlog_fetched(data, 0, **asked).frame for data in (plain, marked))
    assert before == after
    assert all(str(time).encode() in after for time in TIMES)


def test_expiry_for_blipmq(twin: SimpleNamespace, plain: bytearray, marked: bytearray) -> None:
    asked: dict[str, Any] = {"topic": b"t", "qos": 1, "tag_shift": 1, "timestamp_min": NOW}
    asked |= {"bytes_max": 1 << 20, "frame_bytes_max": 1 << 20}
    polls = struct.pack(">3Q", 1, 2, 3)
    before, after = (
        twin.deliver_blipmq(data, 0, 0, 0, 9, polls, **asked) for data in (plain, marked)
    )
    assert (before.frames, before.states, before.polls) == (after.frames, after.states, 2)


def test_times_for_fluvio(twin: SimpleNamespace, plain: bytearray, marked: bytearray) -> None:
    def times(data: bytearray) -> list[int]:
        theirs, _ = twin.log_to_fluvio(data, 0, len(data), 0)
        back = twin.fluvio_to_log(
            theirs, 0, theirs, 57, len(theirs), counted=True, attributes=0, headers=b"\0"
        )
        return [record.timestamp_ms for _, record in batch.records_of(back, 0, bytes_max=1 << 20)]

    assert times(plain) == times(marked) == list(TIMES)


def test_times_when_opened(plain: bytearray, marked: bytearray) -> None:
    before, after = (batch.records_of(data, 0, bytes_max=1 << 20) for data in (plain, marked))
    assert before == after == list(enumerate(RECORDS))

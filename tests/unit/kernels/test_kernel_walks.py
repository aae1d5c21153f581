"""Walks over records: whatever a producer sends, and whatever lies on disk."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest

from pentalog.kernels import FLAW_COUNT, FLAW_NONE, FLAW_RECORD, Malformed
from pentalog.model import batch
from pentalog.model.types import Record

RECORDS = [
    (1_000, b"k0", b"v0", []),
    (1_050, None, b"v1", [("name", b"content"), ("empty", None)]),
    (900, b"", None, []),
    (-1, b"k3", bytes(100), [("", b"")]),
]


def made(twin: SimpleNamespace, *, count: int = 4, attributes: int = 0) -> bytearray:
    payload, base, newest = twin.encode_records(RECORDS[:count])
    sound = batch.build([Record(b"")] * count, timestamp_ms=base)
    header = batch.batch_header(sound, 0)._replace(max_timestamp=newest, attributes=attributes)
    return batch.rebuild(header, payload, count=count, codec=0)


def number(value: int, size: int) -> bytes:
    """A varint of a size that is larger than it need be."""
    raw = value << 1
    out = [raw >> 7 * index & 0x7F | 0x80 for index in range(size)]
    out[-1] &= 0x7F
    return bytes(out)


@pytest.mark.parametrize(("size", "flaw"), [(1, 0), (4, 0), (5, 0), (6, FLAW_RECORD)])
def test_numbers_of_32_bits_end_within_five_bytes(
    twin: SimpleNamespace, size: int, flaw: int
) -> None:
    for field in range(4):
        sizes = [1] * 4
        sizes[field] = size
        body = b"\0\0" + number(0, sizes[0]) + number(1, sizes[1]) + b"k"
        body += number(1, sizes[2]) + b"v" + number(0, sizes[3])
        payload = bytes([len(body) << 1]) + body
        assert twin.check_records(payload, 0, len(payload), 1)[0] == flaw
    body = b"\0\0\0\x01\x01\0"
    payload = number(len(body), size) + body
    assert twin.check_records(payload, 0, len(payload), 1)[0] == flaw


def test_numbers_beyond_32_bits_are_malformed(twin: SimpleNamespace) -> None:
    body = b"\0\0\0\x01" + b"\x82\x80\x80\x80\x10" + b"\0"  # 2**32 + 1 once the sign is taken off
    payload = bytes([len(body) << 1]) + body
    assert twin.check_records(payload, 0, len(payload), 1)[0] == FLAW_RECORD


def test_offset_deltas_count_or_grow(twin: SimpleNamespace) -> None:
    payload, _, _ = twin.encode_records(RECORDS)
    first = twin.cut_records(payload, 0, len(payload), 4, delta_min=1, bytes_max=1 << 20)
    start, end, count, last = first
    assert (end, count, last) == (len(payload), 3, 3)
    assert twin.check_records(payload, start, end, 3)[0] == FLAW_RECORD, "does not count from 0"
    assert twin.check_records(payload, start, end, 3, 3)[0] == FLAW_NONE
    assert twin.check_records(payload, start, end, 3, 2)[0] == FLAW_RECORD, "beyond the last"
    twice = payload + payload
    assert twin.check_records(twice, 0, len(twice), 8, 9)[0] == FLAW_RECORD, "does not grow"
    assert twin.check_records(payload, 0, len(payload), 3)[0] == FLAW_COUNT


def test_parts_are_cut_at_records(twin: SimpleNamespace) -> None:
    payload, _, _ = twin.encode_records(RECORDS)
    whole = (payload, 0, len(payload), 4)
    assert twin.cut_records(*whole, delta_min=4, bytes_max=9) == (len(payload), len(payload), 0, -1)
    start, end, count, last = twin.cut_records(*whole, delta_min=0, bytes_max=0)
    assert (start, count, last) == (0, 1, 0), "at least one"
    assert twin.cut_records(*whole, delta_min=0, bytes_max=end)[1:] == (end, 1, 0)
    following = twin.cut_records(*whole, delta_min=last + 1, bytes_max=1)
    assert following[0] == end
    with pytest.raises(Malformed):
        twin.cut_records(payload, 0, len(payload) - 1, 4, delta_min=0, bytes_max=1 << 20)


def test_a_time_is_found_without_a_look_at_what_follows(twin: SimpleNamespace) -> None:
    payload, base, _ = twin.encode_records(RECORDS)
    payload[-20:] = b"\xff" * 20
    place = {"base_offset": 70, "base_timestamp": base}

    def found(offset: int, timestamp: int) -> tuple[int, int]:
        whole = (payload, 0, len(payload), 4)
        result: tuple[int, int] = twin.find_time(
            *whole, **place, offset_min=offset, timestamp_min=timestamp
        )
        return result

    assert found(0, 1_000) == (70, 1_000)
    assert found(0, 1_001) == (71, 1_050)
    assert found(72, 0) == (72, 900)
    with pytest.raises(Malformed):
        found(0, 1_051)
    assert twin.find_time(b"", 0, 0, 0, **place, offset_min=0, timestamp_min=0) == (-1, -1)


def test_records_that_break_a_rule_are_named(twin: SimpleNamespace) -> None:
    payload, base, _ = twin.encode_records(RECORDS)
    whole = (payload, 0, len(payload), 4)
    times = {"base_timestamp": base, "timestamp_min": 901, "timestamp_max": 1_049}
    assert twin.refused_records(*whole, **times, keyed=False, most=9) == [(1, 1_050), (2, 900)]
    times |= {"timestamp_min": 0, "timestamp_max": 2_000}
    assert twin.refused_records(*whole, **times, keyed=True, most=9) == [(1, 1_050)]
    times |= {"timestamp_min": 5_000, "timestamp_max": 9_000}
    refused = twin.refused_records(*whole, **times, keyed=True, most=9)
    assert [index for index, _ in refused] == [0, 1, 2], "a record without a time is of any"
    assert len(twin.refused_records(*whole, **times, keyed=True, most=2)) == 2


def test_stored_batches_are_walked_until_one_cannot_be_read(twin: SimpleNamespace) -> None:
    sound, packed = made(twin), made(twin, attributes=0)
    packed[22] |= 4  # what is compressed is not opened
    packed[batch.HEADER_BYTES] = 0xFF
    spoilt = made(twin, attributes=0x20)
    spoilt[batch.HEADER_BYTES] = 0x7E
    data = sound + packed + spoilt + sound
    assert twin.readable_batches(data, 0, len(data)) == (4, len(sound) + len(packed))
    assert twin.readable_batches(data, 0, len(sound)) == (0, len(sound))
    assert twin.readable_batches(data, 0, len(sound) - 1) == (0, 0)
    assert twin.readable_batches(b"", 0, 0) == (0, 0)


def test_the_newest_time_is_the_records_own(twin: SimpleNamespace) -> None:
    data = made(twin) + made(twin, attributes=8)
    for position in (0, len(data) // 2):
        struct.pack_into(">q", data, position + 35, 7)
        body = memoryview(data)[position + 21 : position + len(data) // 2]
        struct.pack_into(">I", data, position + 17, twin.crc32c(body))
    facts = twin.check_batches(data, 0, len(data))
    assert (facts.flaw, facts.timestamp_max, facts.restamp) == (FLAW_NONE, 1_050, True)
    twin.stamp_newest_time(data, 0, len(data))
    assert batch.batch_header(data, 0).max_timestamp == 1_050
    assert batch.batch_header(data, len(data) // 2).max_timestamp == 7, "that of the append"
    assert twin.check_batches(data, 0, len(data)) == facts._replace(restamp=False)

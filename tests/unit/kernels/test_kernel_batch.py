"""Checks, stamps and walks over batches."""

from __future__ import annotations

import mmap
import struct
from types import SimpleNamespace

import pytest
from kernel_samples import batch, patched, resum, stored

from pentalog.kernels import (
    FLAW_CHECKSUM,
    FLAW_CODEC,
    FLAW_COUNT,
    FLAW_LENGTH,
    FLAW_MAGIC,
    FLAW_NONE,
    FLAW_OFFSET,
    FLAW_SHORT,
    Scan,
)

I32_MAX = (1 << 31) - 1


def scan(twin: SimpleNamespace, data: bytearray, **changes: object) -> Scan:
    arguments: dict[str, object] = {
        "file_position": 0,
        "segment_base": 0,
        "next_offset": 0,
        "index_interval": 4096,
        "bytes_since_entry": 0,
        "timestamp_max": -1,
        "timestamp_max_offset": -1,
        "verify": True,
        "producers": False,
    }
    result = twin.scan_batches(data, 0, len(data), **(arguments | changes))
    assert isinstance(result, Scan)
    return result


def test_facts_of_a_sound_run(twin: SimpleNamespace) -> None:
    first, second = batch(3, timestamp=5_000), batch(2, codec=1, value_bytes=500)
    data = b"before" + first + second + b"behind"
    facts = twin.check_batches(data, 6, len(data) - 6)
    assert facts.flaw == FLAW_NONE
    assert facts.flaw_position == len(data) - 6
    assert (facts.batches, facts.offsets, facts.records) == (2, 5, 5)
    assert facts.batch_bytes_max == max(len(first), len(second))
    assert facts.timestamp_max == 5_002
    assert facts.attributes_any == 1
    assert facts.codecs == 0b11
    assert facts.chained
    assert (facts.producer_id, facts.producer_epoch) == (-1, -1)
    assert (facts.sequence_first, facts.sequence_last) == (-1, -1)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, "mmap"])
def test_every_kind_of_buffer(twin: SimpleNamespace, kind: object) -> None:
    data = bytes(batch())
    if kind == "mmap":
        with mmap.mmap(-1, len(data)) as mapped:
            mapped[:] = data
            assert twin.check_batches(mapped, 0, len(data)).records == 3
            assert twin.locate_offset(mapped, 0, len(data), 2)[0] == 0
    else:
        assert callable(kind)
        assert twin.check_batches(kind(data), 0, len(data)).records == 3


FLAWED = {
    "nothing": (bytearray(), FLAW_SHORT),
    "less than a header": (batch()[:16], FLAW_SHORT),
    "half a batch": (batch()[:-1], FLAW_SHORT),
    "too short a length": (patched(batch(), 8, ">i", 48)[:61], FLAW_LENGTH),
    "a negative length": (bytearray(batch()), FLAW_LENGTH),
    "an old format": (bytearray(batch()), FLAW_MAGIC),
    "a wrong sum": (bytearray(batch()), FLAW_CHECKSUM),
    "an unknown codec": (patched(batch(), 21, ">h", 5), FLAW_CODEC),
    "no records": (patched(batch(), 57, ">i", 0), FLAW_COUNT),
    "fewer records than offsets": (patched(batch(), 57, ">i", 2), FLAW_COUNT),
    "a negative last offset": (patched(batch(), 23, ">i", -1), FLAW_COUNT),
    "more records than bytes": (
        patched(patched(batch(), 23, ">i", 999), 57, ">i", 1000),
        FLAW_COUNT,
    ),
}
struct.pack_into(">i", FLAWED["a negative length"][0], 8, -5)
FLAWED["an old format"][0][16] = 1
FLAWED["a wrong sum"][0][-1] ^= 1


@pytest.mark.parametrize("name", FLAWED)
def test_flaws_are_named_and_placed(twin: SimpleNamespace, name: str) -> None:
    bad, flaw = FLAWED[name]
    assert twin.check_batches(bad, 0, len(bad)).flaw == flaw
    if bad:
        good = batch()
        facts = twin.check_batches(good + bad, 0, len(good) + len(bad))
        assert (facts.flaw, facts.flaw_position, facts.batches) == (flaw, len(good), 1)


def test_every_changed_bit_is_noticed(twin: SimpleNamespace) -> None:
    data = batch(1)
    for position in [*range(8, 12), *range(16, len(data))]:
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            assert twin.check_batches(changed, 0, len(changed)).flaw, (position, bit)


@pytest.mark.parametrize(
    ("first", "second", "chained"),
    [
        ((7, 1, 0), (7, 1, 3), True),
        ((7, 1, 0), (7, 1, 4), False),
        ((7, 1, 0), (7, 2, 3), False),
        ((7, 1, 0), (8, 1, 3), False),
        ((7, 1, 0), (-1, -1, -1), False),
        ((-1, -1, -1), (-1, -1, -1), True),
        ((7, 1, I32_MAX - 2), (7, 1, 0), True),
        ((7, 1, I32_MAX - 1), (7, 1, 1), True),
        ((7, 1, I32_MAX - 1), (7, 1, 2), False),
    ],
)
def test_sequences_follow_and_wrap(
    twin: SimpleNamespace,
    first: tuple[int, int, int],
    second: tuple[int, int, int],
    chained: bool,
) -> None:
    data = bytearray()
    for producer, epoch, sequence in (first, second):
        data += batch(3, producer_id=producer, epoch=epoch, sequence=sequence)
    facts = twin.check_batches(data, 0, len(data))
    assert facts.chained is chained
    if chained:
        assert (facts.producer_id, facts.producer_epoch, facts.sequence_first) == first
        last = -1 if second[0] < 0 else second[2] + 2
        assert facts.sequence_last == last


def test_last_sequence_inside_a_batch_wraps(twin: SimpleNamespace) -> None:
    data = batch(5, producer_id=1, epoch=0, sequence=I32_MAX - 1)
    assert twin.check_batches(data, 0, len(data)).sequence_last == 2


def test_header(twin: SimpleNamespace) -> None:
    data = b"xy" + stored(batch(4, producer_id=9, epoch=2, sequence=77), base_offset=1 << 40)
    header = twin.batch_header(data, 2)
    assert header.base_offset == 1 << 40
    assert header.size == len(data) - 2
    assert (header.leader_epoch, header.magic, header.attributes) == (-1, 2, 0)
    assert (header.last_offset_delta, header.records) == (3, 4)
    assert (header.base_timestamp, header.max_timestamp) == (1_000, 1_003)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 77)
    assert header.crc == struct.unpack_from(">I", data, 2 + 17)[0]
    with pytest.raises(ValueError):
        twin.batch_header(data, len(data) - 60)


def test_stamp_fills_offsets_and_keeps_sums(twin: SimpleNamespace) -> None:
    data = bytearray(b"ab") + batch(3) + batch(2) + bytearray(b"yz")
    assert twin.stamp(data, 2, len(data) - 2, 100, 7) == 105
    assert (data[:2], data[-2:]) == (b"ab", b"yz")
    assert twin.check_batches(data, 2, len(data) - 2).flaw == FLAW_NONE
    first = twin.batch_header(data, 2)
    second = twin.batch_header(data, 2 + first.size)
    assert (first.base_offset, second.base_offset) == (100, 103)
    assert (first.leader_epoch, second.leader_epoch) == (7, 7)


def test_stamping_what_was_not_checked_is_our_mistake(twin: SimpleNamespace) -> None:
    data = batch()[:-1]
    with pytest.raises(ValueError):
        twin.stamp(data, 0, len(data), 0, 0)
    with pytest.raises(ValueError):
        twin.stamp_append_time(data, 0, len(data), 0)


def test_append_time(twin: SimpleNamespace) -> None:
    data = batch(3) + batch(2, codec=1)
    twin.stamp_append_time(data, 0, len(data), 1 << 41)
    assert twin.check_batches(data, 0, len(data)).flaw == FLAW_NONE
    first = twin.batch_header(data, 0)
    second = twin.batch_header(data, first.size)
    assert (first.max_timestamp, second.max_timestamp) == (1 << 41, 1 << 41)
    assert (first.attributes, second.attributes) == (8, 9)
    assert first.base_timestamp == 1_000


def test_scan_makes_the_index_kafka_would(twin: SimpleNamespace) -> None:
    times = [5_000, 4_000, 6_000, 5_500, 9_000, 100]
    batches = [batch(2, timestamp=time, value_bytes=200) for time in times]
    data = stored(*batches, base_offset=1_000)
    size = len(batches[0])
    result = scan(
        twin,
        data,
        file_position=70_000,
        segment_base=900,
        next_offset=1_000,
        index_interval=2 * size - 1,
    )
    assert result.flaw == FLAW_NONE
    assert (result.position, result.next_offset, result.batches) == (len(data), 1_012, 6)
    # Two batches fill an interval, so the third and the fifth are entered, by their last offset.
    assert result.entries == struct.pack(">iiii", 105, 70_000 + 2 * size, 109, 70_000 + 4 * size)
    assert result.time_entries == struct.pack(">qiqi", 6_001, 105, 9_001, 109)
    assert (result.timestamp_max, result.timestamp_max_offset) == (9_001, 1_009)
    assert result.bytes_since_entry == 2 * size
    assert result.timestamp_entered == 9_001


def test_time_index_only_grows(twin: SimpleNamespace) -> None:
    data = stored(*[batch(1, timestamp=time) for time in (50, 50, 40, 60)])
    result = scan(twin, data, index_interval=0)
    assert len(result.entries) == 3 * 8
    assert result.time_entries == struct.pack(">qiqi", 50, 0, 60, 3)


def test_records_without_time_stay_out_of_the_time_index(twin: SimpleNamespace) -> None:
    one = patched(patched(batch(1), 27, ">q", -1), 35, ">q", -1)
    result = scan(twin, stored(one, one, one), index_interval=0)
    assert len(result.entries) == 16
    assert result.time_entries == b""
    assert result.timestamp_max == -1


def test_scan_in_pieces_is_scan_in_one(twin: SimpleNamespace) -> None:
    batches = [batch(2, timestamp=1_000 + 37 * n % 11, value_bytes=n) for n in range(40)]
    data = stored(*batches, base_offset=5)
    whole = scan(twin, data, next_offset=5, index_interval=300)
    step = scan(twin, data[:0], next_offset=5, index_interval=300)
    entries, times, place = b"", b"", 0
    for one in batches:
        piece = data[place : place + len(one)]
        step = scan(
            twin,
            piece,
            file_position=place,
            next_offset=step.next_offset,
            index_interval=300,
            bytes_since_entry=step.bytes_since_entry,
            timestamp_max=step.timestamp_max,
            timestamp_max_offset=step.timestamp_max_offset,
            timestamp_entered=step.timestamp_entered,
        )
        entries, times, place = entries + step.entries, times + step.time_entries, place + len(one)
    assert (entries, times) == (whole.entries, whole.time_entries)
    assert len(entries) > 8
    assert step[1:4] == whole[1:4]
    assert step.bytes_since_entry == whole.bytes_since_entry


def test_scan_collects_producers(twin: SimpleNamespace) -> None:
    first = batch(3, producer_id=5, epoch=1, sequence=I32_MAX - 1)
    plain = batch(2)
    last = batch(1, producer_id=6, epoch=0, sequence=4, transactional=True)
    data = stored(first, plain, last, base_offset=50)
    result = scan(twin, data, next_offset=50, producers=True)
    assert result.producers == [
        (5, 1, I32_MAX - 1, 0, 50, 52, 0, 0),
        (6, 0, 4, 4, 55, 55, 0x10, len(first) + len(plain)),
    ]
    assert scan(twin, data, next_offset=50).producers == []


def test_scan_takes_what_compaction_leaves(twin: SimpleNamespace) -> None:
    fewer = patched(batch(3), 57, ">i", 1)
    empty = resum(patched(batch(3)[:61], 8, ">i", 49))
    struct.pack_into(">i", empty, 57, 0)
    resum(empty)
    data = stored(fewer, empty, batch(1), base_offset=10, gap=7)
    result = scan(twin, data, next_offset=3)
    assert (result.flaw, result.batches, result.next_offset) == (FLAW_NONE, 3, 31)


@pytest.mark.parametrize(
    ("bad", "flaw"),
    [
        (batch()[:-1], FLAW_SHORT),
        (bytearray(500), FLAW_MAGIC),
        (patched(batch(), 57, ">i", 4), FLAW_COUNT),
        (patched(batch(), 0, ">q", 2), FLAW_OFFSET),
        (patched(batch(), 0, ">q", -1), FLAW_OFFSET),
        (patched(batch(), 0, ">q", 1 << 31), FLAW_OFFSET),
        (patched(batch(), 0, ">q", (1 << 63) - 2), FLAW_OFFSET),
        (patched(patched(batch(), 21, ">h", 7), 0, ">q", 3), FLAW_CODEC),
    ],
)
def test_scan_stops_at_the_first_flaw(twin: SimpleNamespace, bad: bytearray, flaw: int) -> None:
    good = batch(3)
    result = scan(twin, good + bad + stored(batch(), base_offset=100))
    if flaw == FLAW_SHORT:
        result = scan(twin, good + bad)
    assert (result.flaw, result.position, result.batches) == (flaw, len(good), 1)
    assert result.next_offset == 3


def test_scan_refuses_gaps_when_there_can_be_none(twin: SimpleNamespace) -> None:
    first = stored(batch(3), base_offset=10)
    data = first + stored(batch(3), base_offset=14)
    assert scan(twin, data, next_offset=10).flaw == FLAW_NONE
    result = scan(twin, data, next_offset=10, gaps=False)
    assert (result.flaw, result.position) == (FLAW_OFFSET, len(first))
    assert scan(twin, first, next_offset=10, gaps=False).flaw == FLAW_NONE
    assert scan(twin, first, next_offset=9, gaps=False).flaw == FLAW_OFFSET


def test_scan_refuses_offsets_beyond_the_largest(twin: SimpleNamespace) -> None:
    data = stored(batch(3), base_offset=10)
    assert scan(twin, data, offset_max=12).flaw == FLAW_NONE
    assert scan(twin, data, offset_max=11).flaw == FLAW_OFFSET
    assert scan(twin, data, offset_max=-(1 << 63)).flaw == FLAW_OFFSET


def test_scan_sums_only_when_asked(twin: SimpleNamespace) -> None:
    data = batch()
    data[-1] ^= 1
    assert scan(twin, data).flaw == FLAW_CHECKSUM
    assert scan(twin, data, verify=False).flaw == FLAW_NONE


def test_find_batch_in_garbage(twin: SimpleNamespace) -> None:
    broken = stored(batch(), base_offset=40)
    broken[-1] ^= 1
    early, wanted = stored(batch(), base_offset=3), stored(batch(), base_offset=50)
    garbage = b"\x02" * 133
    data = garbage + broken + early + garbage + wanted + garbage
    at = len(data) - len(garbage) - len(wanted)
    assert twin.find_batch(data, 0, len(data), offset_min=10, offset_max=60) == at
    assert twin.find_batch(data, at, len(data), offset_min=50, offset_max=50) == at
    assert twin.find_batch(data, at + 1, len(data), offset_min=0, offset_max=60) == -1
    assert twin.find_batch(data, 0, at + len(wanted) - 1, offset_min=10, offset_max=60) == -1
    assert twin.find_batch(data, 0, len(data), offset_min=51, offset_max=60) == -1
    assert twin.find_batch(data, 0, 5, offset_min=0, offset_max=60) == -1


def test_find_batch_far_away(twin: SimpleNamespace) -> None:
    data = bytearray(200_000) + stored(batch(), base_offset=1)
    for start in (0, 17, 65_536 - 16, 65_536):
        found = twin.find_batch(data, start, len(data), offset_min=0, offset_max=9)
        assert found == 200_000


def test_locate_offset(twin: SimpleNamespace) -> None:
    first, second = batch(3), batch(4)
    data = stored(first, second, base_offset=10, gap=2)
    size = len(first)
    for offset in (0, 10, 12):
        assert twin.locate_offset(data, 0, len(data), offset) == (0, size, 10, 13)
    for offset in (13, 15, 18):
        assert twin.locate_offset(data, 0, len(data), offset) == (size, len(second), 15, 19)
    assert twin.locate_offset(data, 0, len(data), 19) == (-1, len(data), -1, -1)
    # The header is enough; without a whole header the walk stops before it.
    assert twin.locate_offset(data, 0, size + 61, 15)[0] == size
    assert twin.locate_offset(data, 0, size + 60, 15) == (-1, size, -1, -1)
    assert twin.locate_offset(data, 0, 61, 15) == (-1, size, -1, -1)


def test_fit_batches(twin: SimpleNamespace) -> None:
    one = batch(3)
    data = b"-" + stored(one, one, one)
    size, end = len(one), 1 + 3 * len(one)
    assert twin.fit_batches(data, 1, end, 1 << 40, 1 << 40) == (end, 9)
    assert twin.fit_batches(data, 1, end, 2 * size, 9) == (1 + 2 * size, 6)
    assert twin.fit_batches(data, 1, end, 2 * size - 1, 9) == (1 + size, 3)
    assert twin.fit_batches(data, 1, end, 3 * size, 8) == (1 + 2 * size, 6)
    assert twin.fit_batches(data, 1, end - 1, 3 * size, 9) == (1 + 2 * size, 6)
    assert twin.fit_batches(data, 1, end, size - 1, 9) == (1, -1)
    assert twin.fit_batches(data, 1, end, -5, 9) == (1, -1)
    assert twin.fit_batches(data, 1, end, 3 * size, 2) == (1, -1)


def test_attributes_in(twin: SimpleNamespace) -> None:
    first, second = batch(1, codec=1), batch(2)
    data = b"-" + stored(first, second)
    assert twin.attributes_in(data, 1, len(data)) == (1, len(data))
    assert twin.attributes_in(data, 1 + len(first), len(data)) == (0, len(data))
    assert twin.attributes_in(data, 1, len(data) - 1) == (1, 1 + len(first))
    assert twin.attributes_in(data, 1, 1) == (0, 1)


def test_locate_time(twin: SimpleNamespace) -> None:
    first, second = batch(3, timestamp=1_000), batch(3, timestamp=3_000)
    data = stored(first, second)
    assert twin.locate_time(data, 0, len(data), 1_002) == (0, len(first))
    assert twin.locate_time(data, 0, len(data), 1_003) == (len(first), len(second))
    assert twin.locate_time(data, 0, len(data), 3_003) == (-1, len(data))

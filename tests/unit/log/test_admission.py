"""What a partition lets in: every record of every batch is looked at."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.logs import AT, LogBench, crooked

from pentalog import kernels
from pentalog.model import batch, compression
from pentalog.model.errors import (
    BrokerError,
    InvalidRecord,
    InvalidTimestamp,
    RecordTooLarge,
)
from pentalog.model.types import Record

CODECS = range(5)
POISON: dict[str, Callable[[bytearray], None]] = {
    "garbage": lambda payload: payload.__setitem__(slice(None), b"\xaa" * len(payload)),
    "bytes behind": lambda payload: payload.extend(b"\0"),
    "too short": lambda payload: payload.__delitem__(slice(-3, None)),
    "length": lambda payload: payload.__setitem__(0, payload[0] + 2),
    "offset delta": lambda payload: payload.__setitem__(3, 8),
    "key length": lambda payload: payload.__setitem__(4, 0x40),
    "endless number": lambda payload: payload.__setitem__(slice(0, 1), b"\x80\x80\x80\x80\x80\1"),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", POISON)
def test_poison_with_a_right_sum_is_refused(tmp_path: Path, kind: str, codec: int) -> None:
    bench = LogBench(tmp_path)
    bench.partition()
    records = [Record(b"value", b"key"), Record(b"value", b"key")]
    poison = crooked(records, POISON[kind], codec=codec)
    with pytest.raises(InvalidRecord):
        bench.log.append(AT, memoryview(poison))
    facts = kernels.check_batches(poison, 0, len(poison))
    if not facts.flaw:
        with pytest.raises(InvalidRecord):
            bench.log.admission(AT, memoryview(poison), facts)
    assert bench.log.marks(AT).end == 0


@pytest.mark.parametrize("codec", CODECS)
def test_a_count_that_is_not_there_is_refused(tmp_path: Path, codec: int) -> None:
    bench = LogBench(tmp_path)
    bench.partition()
    for count in (0, 1, 3, (1 << 31) - 1):
        data = batch.build([Record(b"a"), Record(b"b")], timestamp_ms=5, codec=codec)
        struct.pack_into(">i", data, 57, count)
        struct.pack_into(">i", data, 23, count - 1)
        struct.pack_into(">I", data, 17, kernels.crc32c(memoryview(data)[21:]))
        with pytest.raises(InvalidRecord):
            bench.log.append(AT, memoryview(data))


@pytest.mark.parametrize("codec", CODECS)
def test_what_does_not_decompress_is_refused(tmp_path: Path, codec: int) -> None:
    bench = LogBench(tmp_path)
    bench.partition()
    data = batch.build([Record(b"a" * 100)], timestamp_ms=5, codec=codec)
    data[batch.HEADER_BYTES :] = b"\xfe" * (len(data) - batch.HEADER_BYTES)
    struct.pack_into(">I", data, 17, kernels.crc32c(memoryview(data)[21:]))
    with pytest.raises(InvalidRecord):
        bench.log.append(AT, memoryview(data))


@pytest.mark.parametrize("codec", CODECS)
def test_headers_are_made_to_name_the_newest_record(tmp_path: Path, codec: int) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    bench.partition()
    now = bench.runtime.now_ms()
    records = [Record(b"a", timestamp_ms=now), Record(b"b", timestamp_ms=now + 50)]
    for said in (now - 7, now + 400, -1):
        data = batch.build(records, timestamp_ms=0, codec=codec)
        struct.pack_into(">q", data, 35, said)
        struct.pack_into(">I", data, 17, kernels.crc32c(memoryview(data)[21:]))
        bench.log.append(AT, memoryview(data))
    assert [record.timestamp_ms - now for _, record in bench.read()] == [0, 50] * 3
    assert bench.log.locate(AT, now + 50).value == (1, now + 50)
    assert bench.log.locate(AT, now + 51).value == (-1, -1)


@pytest.mark.parametrize("codec", CODECS)
def test_records_without_a_key_are_named(tmp_path: Path, codec: int) -> None:
    bench = LogBench(tmp_path)
    bench.partition(cleanup_compact=True)
    records = [Record(b"v", None if number % 3 == 1 else b"k") for number in range(10)]
    data = batch.build(records, timestamp_ms=bench.runtime.now_ms(), codec=codec)
    with pytest.raises(InvalidRecord) as refused:
        bench.log.append(AT, memoryview(data))
    assert [index for index, _ in refused.value.records] == [1, 4, 7]


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_another_time_are_named(tmp_path: Path, codec: int) -> None:
    bench = LogBench(tmp_path)
    bench.partition(timestamp_before_ms_max=1000, timestamp_after_ms_max=1000)
    now = bench.runtime.now_ms()
    times = (now, now - 1001, now + 1001, now - 1000, now + 1000)
    records = [Record(b"v", timestamp_ms=time) for time in times]
    data = batch.build(records, timestamp_ms=0, codec=codec)
    with pytest.raises(InvalidTimestamp) as refused:
        bench.log.append(AT, memoryview(data))
    assert [index for index, _ in refused.value.records] == [1, 2]


def bomb(size: int, codec: int = compression.ZSTD) -> bytearray:
    """A small batch that holds much: one record."""
    return batch.build([Record(bytes(size))], timestamp_ms=5, codec=codec)


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_batch_may_hold_8_mib_whatever_its_size_and_128_times_its_size(
    tmp_path: Path, codec: int
) -> None:
    bench = LogBench(tmp_path)
    bench.partition()
    bench.log.append(AT, memoryview(bomb(7 << 20, codec)))
    large = bomb(9 << 20, codec)
    if 128 * len(large) < 9 << 20:
        with pytest.raises(RecordTooLarge, match="holds more than 8388608 bytes"):
            bench.log.append(AT, memoryview(large))
    else:
        bench.log.append(AT, memoryview(large))


def test_what_is_large_is_opened_on_a_lane(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    partition = bench.partition()
    small, slow, large = bomb(1 << 20), bomb(1 << 19, codec=compression.GZIP), bomb(2 << 20)
    for data, at_once in ((small, True), (slow, False), (large, False)):
        facts = kernels.check_batches(data, 0, len(data))
        admission = bench.log.admission(AT, memoryview(data), facts)
        assert admission is not None
        assert admission.ready is at_once
        data[:] = bytes(len(data)) if not at_once else data
        bench.runtime.step()
        batches, facts, settings = admission.value
        assert settings is partition.settings
        bench.log.append(AT, batches, facts, opened=settings)
    assert [len(record.value or b"") for _, record in bench.read()] == [1 << 20, 1 << 19, 2 << 20]


def test_what_was_opened_under_other_settings_is_opened_again(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition()
    data = bomb(2 << 20)
    facts = kernels.check_batches(data, 0, len(data))
    admission = bench.log.admission(AT, memoryview(data), facts)
    assert admission is not None
    bench.runtime.step()
    batches, facts, settings = admission.value
    bench.partition(cleanup_compact=True)
    with pytest.raises(InvalidRecord, match="without a key"):
        bench.log.append(AT, batches, facts, opened=settings)


def test_refusals_come_from_the_lane(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition()
    for data in (bomb(9 << 20), crooked([Record(bytes(2 << 20))], POISON["bytes behind"], codec=4)):
        facts = kernels.check_batches(data, 0, len(data))
        admission = bench.log.admission(AT, memoryview(data), facts)
        assert admission is not None
        assert not admission.ready
        bench.runtime.step()
        with pytest.raises(BrokerError):
            admission.check()


def test_uncompressed_batches_are_not_opened(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition()
    data = batch.build([Record(b"v")], timestamp_ms=bench.runtime.now_ms())
    facts = kernels.check_batches(data, 0, len(data))
    assert bench.log.admission(AT, memoryview(data), facts) is None


def test_a_time_is_found_in_a_large_batch_without_waiting_on_the_loop(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    bench.partition()
    now = bench.runtime.now_ms()
    records = [Record(bytes(100), timestamp_ms=now + number) for number in range(10_000)]
    bench.log.append(AT, memoryview(batch.build(records, timestamp_ms=0, codec=4)))
    later = bench.log.locate(AT, now + 7_777)
    assert not later.ready
    bench.runtime.step()
    assert later.value == (7_777, now + 7_777)


def test_a_batch_that_cannot_be_read_has_no_time(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    bench.partition()
    now = bench.runtime.now_ms()
    records = [Record(b"v", timestamp_ms=now + 5)]
    for codec in (0, 4):
        bench.plant(crooked(records, POISON["garbage"], codec=codec))
    bench.append(b"sound", timestamp_ms=now + 9)
    assert bench.log.locate(AT, now + 1).value == (2, now + 9)

"""Append, read, roll, restart: the log without a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.logs import AT, LogBench, bytes_of

from pentalog import kernels
from pentalog.model import batch
from pentalog.model.errors import (
    BatchCorrupt,
    InvalidRecord,
    InvalidTimestamp,
    OffsetOutOfRange,
    OutOfSequence,
    ProducerFenced,
    RecordTooLarge,
    UnsupportedFormat,
)
from pentalog.model.settings import TimestampType
from pentalog.model.types import Ack, Edge, Horizon, Partition, Record


def test_what_is_appended_is_read_back_with_its_offsets(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition()
    first = bench.append(b"a", b"b")
    second = bench.append(b"c")
    assert (first.base_offset, first.next_offset) == (0, 2)
    assert (second.base_offset, second.next_offset) == (2, 3)
    assert bench.values() == {0: b"a", 1: b"b", 2: b"c"}
    assert bench.values(1) == {1: b"b", 2: b"c"}
    assert bench.values(3) == {}


def test_durability_is_waited_for_and_readers_stop_there(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    partition = bench.partition()
    later = bench.log.settle(bench.append(b"a"), Ack.DURABLE)
    assert not later.ready
    assert bench.log.settle(bench.append(b"b"), Ack.WRITTEN).ready
    assert partition.marks == (0, 0, 0, 2)
    bench.runtime.step()
    assert later.ready
    assert partition.durable.offset >= 1
    bench.runtime.advance(bench.config.flush_interval_ms * 2)
    assert partition.marks == (0, 2, 2, 2)


def test_interval_zero_declares_the_page_cache_good_enough(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition()
    assert bench.log.settle(bench.append(b"a"), Ack.DURABLE).ready
    assert partition.durable.offset == 1
    assert bench.metrics.syncs == 0


def test_segments_roll_by_size_and_age_and_reads_cross_them(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    partition = bench.partition(segment_bytes=2048, segment_ms=1000)
    for number in range(60):
        bench.append(b"%03d" % number * 50)
    assert len(partition.segments) > 3
    count = len(partition.segments)
    bench.append(b"later", timestamp_ms=bench.runtime.now_ms() + 5000)
    assert len(partition.segments) == count + 1
    values = bench.values()
    assert list(values) == list(range(61))
    assert values[17] == b"017" * 50
    names = sorted(path.name for path in partition.directory.glob("*.log"))
    assert names[0] == "00000000000000000000.log"


def test_bytes_max_gives_whole_batches_and_at_least_one(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition()
    for _ in range(100):
        bench.append(b"x" * 1000)
    one = bench.log.read(AT, 0, bytes_max=10, horizon=Horizon.END).value
    assert one.next_offset == 1
    assert one.size_bytes > 1000
    none = bench.log.read(AT, 0, bytes_max=10, horizon=Horizon.END, whole_first=False).value
    assert none.size_bytes == 0
    some = bench.log.read(AT, 5, bytes_max=20_000, horizon=Horizon.END).value
    assert some.next_offset == 5 + 20_000 // one.size_bytes
    assert some.size_bytes == (some.next_offset - 5) * one.size_bytes


def test_offsets_outside_are_refused_with_the_range(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition()
    bench.append(b"a")
    with pytest.raises(OffsetOutOfRange, match=r"offset 5 outside 0\.\.1 of events-0"):
        bench.log.read(AT, 5, bytes_max=100, horizon=Horizon.END)


def test_a_clean_restart_finds_everything_without_reading_it(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition(segment_bytes=4096)
    for number in range(100):
        bench.append(b"%d" % number * 20)
    bench.store.close()
    again = LogBench(tmp_path)
    assert again.partition().marks.end == 100
    assert again.values() == {number: b"%d" % number * 20 for number in range(100)}
    assert again.metrics.damaged_batches == 0
    assert again.append(b"next").base_offset == 100


def test_timestamps_are_located(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition(segment_bytes=4096, index_interval_bytes=100)
    now = bench.runtime.now_ms()
    for number in range(200):
        bench.append(b"x" * 50, timestamp_ms=now + number * 10)
    bench.runtime.advance(1000)
    locate = bench.log.locate
    assert locate(AT, now + 555).value == (56, now + 560)
    assert locate(AT, now).value == (0, now)
    assert locate(AT, now - 5).value == (0, now)
    assert locate(AT, now + 10_000).value == (-1, -1)
    assert locate(AT, Edge.NEWEST_TIMESTAMP).value == (199, now + 1990)
    assert locate(AT, Edge.START).value == (0, -1)
    assert locate(AT, Edge.END).value == (200, -1)
    bench.store.close()
    assert LogBench(tmp_path).log.locate(AT, now + 555).value == (56, now + 560)


def test_idempotent_producers_are_heard_once(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition()

    def send(value: bytes, sequence: int, epoch: int = 0) -> tuple[int, bool]:
        appended = bench.append(value, producer_id=9, producer_epoch=epoch, base_sequence=sequence)
        return appended.base_offset, appended.duplicate

    for sequence in range(7):
        assert send(b"%d" % sequence, sequence) == (sequence, False)
    assert send(b"6", 6) == (6, True)
    assert send(b"2", 2) == (2, True)
    with pytest.raises(OutOfSequence, match="expected 7"):
        send(b"1", 1)  # older than the five that are remembered
    with pytest.raises(OutOfSequence, match="sent sequence 9"):
        send(b"9", 9)
    bench.store.close()

    bench = LogBench(tmp_path)
    assert send(b"6", 6) == (6, True)
    assert send(b"7", 7) == (7, False)
    assert send(b"0", 0, epoch=1) == (8, False)
    with pytest.raises(ProducerFenced):
        send(b"8", 8, epoch=0)
    bench.crash()

    bench = LogBench(tmp_path)
    assert send(b"0", 0, epoch=1) == (8, True)
    assert list(bench.values()) == list(range(9))


def test_topic_rules_refuse_what_they_say(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition(message_bytes_max=500)
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes accepts 500"):
        bench.append(b"x" * 1000)
    with pytest.raises(InvalidTimestamp):
        bench.append(b"x", timestamp_ms=bench.runtime.now_ms() + 10 * 3600 * 1000)
    bench.partition(cleanup_compact=True)
    with pytest.raises(InvalidRecord, match="without a key"):
        bench.append(b"x")
    bench.append(b"x", keys=[b"k"])
    with pytest.raises(UnsupportedFormat):
        bench.log.append(AT, memoryview(bytearray(b"\0" * 61)))
    torn = bytearray(batch.build([Record(b"v", b"k")], timestamp_ms=1))
    torn[-1] ^= 1
    with pytest.raises(BatchCorrupt, match="checksum"):
        bench.log.append(AT, memoryview(torn))
    assert list(bench.values()) == [0]


def test_append_time_and_compression_of_the_topic_win(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition(timestamp_type=TimestampType.APPEND, compression="zstd")
    now = bench.runtime.now_ms()
    appended = bench.append(b"x" * 1000, b"y", timestamp_ms=5)
    assert appended.timestamp_ms == now
    assert [record.timestamp_ms for _, record in bench.read()] == [now, now]
    assert bench.store.get(AT).size_bytes < 300


@pytest.mark.parametrize(
    ("codec", "quick", "hard"),
    [
        ("gzip", {"gzip_level": 1}, {"gzip_level": 9}),
        ("lz4", {"lz4_level": 9}, {"lz4_level": 17}),
        ("zstd", {"zstd_level": -5}, {"zstd_level": 19}),
    ],
)
def test_the_topic_says_how_hard_to_compress(
    tmp_path: Path, codec: str, quick: dict[str, int], hard: dict[str, int]
) -> None:
    value = b"".join(b"%x %d;" % (number * number, number % 97) for number in range(5000))
    sizes = []
    for name, level in (("quick", quick), ("hard", hard)):
        bench = LogBench(tmp_path / name)
        bench.partition(compression=codec, **level)
        bench.append(value)
        assert [record.value for _, record in bench.read()] == [value]
        sizes.append(bench.store.get(AT).size_bytes)
    assert len(value) > sizes[0] > sizes[1]


def test_trim_raises_the_start_for_good(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(segment_bytes=2048)
    for number in range(50):
        bench.append(b"%03d" % number * 50)
    count = len(partition.segments)
    partition.trim(20)
    bench.store.write_starts()
    assert len(partition.segments) < count
    assert partition.marks.start == 20
    assert min(bench.values(20)) == 20
    with pytest.raises(OffsetOutOfRange):
        bench.values(19)
    bench.crash()
    assert LogBench(tmp_path).partition().marks.start == 20


def test_waiting_readers_are_told(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition()
    waiting = bench.log.wait({AT: 0}, bytes_min=1, horizon=Horizon.DURABLE, timeout_ms=500)
    late = bench.log.wait({AT: 0}, bytes_min=10_000, horizon=Horizon.DURABLE, timeout_ms=500)
    assert not waiting.ready
    bench.append(b"x")
    assert not waiting.ready  # not durable yet
    bench.runtime.step()
    assert waiting.value is True
    assert not late.ready
    bench.runtime.advance(600)
    assert late.value is False
    assert not bench.store.get(AT).watchers


def test_deleting_a_partition_does_not_harm_another(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    other = Partition("doomed", 0)
    bench.partition()
    bench.partition(other)
    for _ in range(40):
        bench.settled(b"x")  # until the journal is in use
    bench.partition(Partition("late", 0))
    later = bench.log.settle(bench.append(b"y"), Ack.DURABLE)
    bench.store.delete(Partition("late", 0))
    bench.store.delete(other)
    bench.runtime.step()
    assert later.value.base_offset == 40


def test_slices_of_any_size_join_without_a_gap(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition(index_interval_bytes=1000, segment_bytes=60_000)
    for number in range(300):
        bench.append(b"z" * (number * 37 % 900))
    for bytes_max in (1, 700, 999, 1000, 4096, 10_000, 100_000):
        offset = 0
        while offset < 300:
            part = bench.log.read(AT, offset, bytes_max=bytes_max, horizon=Horizon.END).value
            assert part.next_offset > offset
            data = bytes_of(part.pieces)
            assert kernels.batch_header(data, 0).base_offset == offset
            assert kernels.check_batches(data, 0, len(data)).offsets == part.next_offset - offset
            offset = part.next_offset


def test_a_retry_of_what_was_deleted_meanwhile_is_recognised(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition()
    sent = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    assert bench.settled(b"a", b"b", **sent).base_offset == 0
    bench.settled(b"c")
    bench.store.get(AT).trim(2)
    bench.store.write_starts()
    bench.crash()
    again = LogBench(tmp_path)
    assert again.store.get(AT).marks == (2, 3, 3, 3)
    assert again.append(b"a", b"b", **sent).base_offset == 0
    assert again.store.get(AT).end_offset == 3

"""Compaction: the newest value of every key stays, whatever else goes."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.support.compactions import (
    COMPACTED,
    compact,
    fill,
    keys_read,
    leftovers,
    newest,
    numbered,
)
from tests.support.logs import AT, LogBench, bytes_of

from pentalog import kernels
from pentalog.log.compaction import Compaction, plan
from pentalog.log.housekeeping import Housekeeping
from pentalog.model import batch
from pentalog.model.compression import CODECS
from pentalog.model.settings import TimestampType
from pentalog.model.types import FilePiece, Horizon, Partition, Record

MINUTE_MS = 60_000
SEED = int(os.environ.get("PENTALOG_SEED", "20261115"))


@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
def test_the_newest_value_of_every_key_survives_random_histories(
    tmp_path: Path, codec: int
) -> None:
    chance = random.Random(SEED + codec)
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(**COMPACTED, index_interval_bytes=200)
    expected: dict[bytes, bytes | None] = {}
    by_offset: dict[int, tuple[bytes, bytes | None]] = {}
    for step in range(500):
        count = chance.randint(1, 6)
        keys = [b"key-%d" % int(chance.paretovariate(0.7)) for _ in range(count)]
        values = [
            None if chance.random() < 0.1 else bytes([97 + step % 26]) * chance.randint(0, 80)
            for _ in range(count)
        ]
        base = bench.append(*values, keys=keys, codec=codec).base_offset
        for number, (key, value) in enumerate(zip(keys, values, strict=True)):
            expected[key] = value
            by_offset[base + number] = (key, value)
        if chance.random() < 0.03:
            compact(bench, newest_bytes_max=chance.choice([500, 5000, 1 << 20]))
            assert newest(bench) == expected
        if chance.random() < 0.01:
            bench.store.close() if chance.random() < 0.5 else bench.crash()
            bench = LogBench(tmp_path, flush_interval_ms=0)
            partition = bench.partition(**COMPACTED, index_interval_bytes=200)
    partition.roll()
    compact(bench)
    assert newest(bench) == expected
    # Offsets never change, and exactly the newest of each key is left.
    left = {offset: (record.key, record.value) for offset, record in bench.read()}
    assert left == {offset: by_offset[offset] for offset in left}
    assert len(left) == len(expected)
    assert bench.metrics.damaged_batches == 0
    assert not leftovers(partition)
    for offset in range(partition.end_offset):  # every offset leads to the next record there is
        following = bench.log.read(AT, offset, bytes_max=1, horizon=Horizon.END).value
        data = bytes_of(following.pieces)
        assert following.next_offset > offset
        assert all(
            at < following.next_offset for at, _ in batch.records_of(data, 0, bytes_max=1 << 20)
        )


def test_it_makes_the_log_smaller_and_joins_what_is_left(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(**COMPACTED)
    fill(bench, numbered(400, keys=7))
    size, count = partition.size_bytes, len(partition.segments)
    assert compact(bench)
    assert partition.size_bytes < size / 5
    assert len(partition.segments) == 2 < count
    assert partition.segments[0].base_offset == 0
    assert bench.store.cleaned_offsets[AT] == partition.active.base_offset
    assert bench.metrics.compactions == 1
    assert bench.metrics.segments_compacted == count - 1
    assert bench.metrics.segments_compacted_bytes == partition.segments[0].size
    assert bench.metrics.records_compacted == partition.active.base_offset - 7
    assert not compact(bench)
    names = {path.name for path in partition.directory.glob("*.index")}
    assert names == {path.with_suffix(".index").name for path in partition.directory.glob("*.log")}


def test_untouched_batches_keep_their_bytes_and_untouched_segments_their_files(
    tmp_path: Path,
) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(**COMPACTED)
    fill(bench, [(b"once-%d" % number, b"v" * 100) for number in range(60)])
    before = {path.name: path.read_bytes() for path in partition.directory.glob("*.log")}
    inodes = {path.name: path.stat().st_ino for path in partition.directory.glob("*.log")}
    assert compact(bench)
    assert {path.name: path.read_bytes() for path in partition.directory.glob("*.log")} == before
    assert {p.name: p.stat().st_ino for p in partition.directory.glob("*.log")} == inodes
    assert bench.metrics.segments_compacted == bench.metrics.records_compacted == 0
    assert bench.metrics.segments_not_compacted == len(before) - 1
    fill(bench, [(b"once-3", b"new")])
    partition.roll()
    assert compact(bench)
    first = (partition.directory / f"{0:020d}.log").read_bytes()
    untouched = before[f"{0:020d}.log"]
    assert first[: len(first) // 4] == untouched[: len(first) // 4]
    assert len(first) < len(untouched)


def test_rebuilt_batches_keep_offsets_producer_codec_and_times(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(**COMPACTED)
    now = bench.runtime.now_ms()
    records = [Record(b"v" * 50, b"a", (("h", b"x"),), now + 5), Record(b"w" * 50, b"b", (), now)]
    data = batch.build(
        records, timestamp_ms=now, codec=4, producer_id=8, producer_epoch=2, base_sequence=0
    )
    bench.append(b"x", keys=[b"first"])
    bench.log.append(AT, memoryview(data))
    bench.append(b"newer", keys=[b"a"])
    partition.roll()
    assert compact(bench)
    read = bench.log.read(AT, 1, bytes_max=1, horizon=Horizon.END).value
    header = kernels.batch_header(bytes_of(read.pieces), 0)
    assert (header.base_offset, header.last_offset_delta, header.records) == (1, 1, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 2, 0)
    assert header.attributes & 7 == 4
    assert (header.base_timestamp, header.max_timestamp) == (now + 5, now)
    assert bench.read(1)[0][0] == 2
    assert bench.read(1)[0][1].timestamp_ms == now


def test_append_time_stays_the_time_of_the_batch(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(**COMPACTED, timestamp_type=TimestampType.APPEND)
    now = bench.runtime.now_ms()
    bench.append(b"1", b"2", keys=[b"a", b"b"], timestamp_ms=77)
    bench.append(b"3", keys=[b"a"], timestamp_ms=78)
    partition.roll()
    assert compact(bench)
    assert [(at, r.value, r.timestamp_ms) for at, r in bench.read()] == [
        (1, b"2", now),
        (2, b"3", now),
    ]


def test_where_nothing_is_left_readers_are_still_led_on(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    bench.partition(segment_bytes=2048)
    for _ in range(40):
        bench.append(b"without a key" * 10)
    partition = bench.partition(**COMPACTED)
    partition.roll()
    assert compact(bench)
    assert bench.values() == {}
    for offset in range(40):
        found = bench.log.read(AT, offset, bytes_max=1 << 20, horizon=Horizon.DURABLE).value
        assert found.size_bytes
        assert found.next_offset == 40
    fill(bench, [(b"k", b"v")])
    partition.roll()
    assert compact(bench)
    assert bench.values() == {40: b"v"}
    assert len(partition.segments) == 2


def test_restart_after_compaction_finds_the_same(tmp_path: Path) -> None:
    for stop in ("close", "crash"):
        bench = LogBench(tmp_path / stop)
        partition = bench.partition(**COMPACTED, index_interval_bytes=100)
        fill(bench, numbered(300, keys=11))
        bench.runtime.advance(1000)
        assert compact(bench)
        expected, left = newest(bench), bench.values()
        bench.store.close() if stop == "close" else bench.crash()
        again = LogBench(tmp_path / stop)
        assert again.values() == left
        assert again.metrics.damaged_batches == 0
        partition = again.partition(**COMPACTED, index_interval_bytes=100)
        assert again.store.cleaned_offsets[AT] == partition.active.base_offset
        fill(again, numbered(100, keys=11, start=300))
        partition.roll()
        again.runtime.advance(1000)
        assert compact(again)
        assert newest(again) == {**expected, **dict(numbered(100, keys=11, start=300))}


def test_indexes_of_the_new_segment_are_those_a_rebuild_would_make(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    settings = {**COMPACTED, "segment_bytes": 16 << 10, "index_interval_bytes": 300}
    partition = bench.partition(**settings)
    now = bench.runtime.now_ms()
    for number, (key, value) in enumerate(numbered(600, keys=150)):
        bench.append(value, keys=[key], timestamp_ms=now - 600 + number)
    partition.roll()
    assert compact(bench)
    new = partition.segments[0]
    assert len(new.index) > 5
    suffixes = (".index", ".timeindex")
    written = {suffix: new.path(suffix).read_bytes() for suffix in suffixes}
    bench.store.close()
    for suffix in suffixes:
        new.path(suffix).unlink()
    again = LogBench(tmp_path)
    assert len(again.partition(**settings).segments[0].index) > 5
    assert {suffix: new.path(suffix).read_bytes() for suffix in suffixes} == written
    assert again.log.locate(AT, now - 100).value == (500, now - 100)


def test_a_reader_in_the_middle_of_a_slice_keeps_what_it_began(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    bench.partition(**COMPACTED)
    fill(bench, numbered(200, keys=5))
    slice_before = bench.log.read(AT, 0, bytes_max=1500, horizon=Horizon.END).value
    before = bytes_of(slice_before.pieces)
    assert isinstance(slice_before.pieces[0], FilePiece)
    assert compact(bench)
    bench.runtime.advance(10 * 60_000)  # the old files have been removed by now
    assert bytes_of(slice_before.pieces) == before
    rest = bench.values(slice_before.next_offset)
    assert min(rest) >= slice_before.next_offset
    assert newest(bench) == dict(numbered(200, keys=5))


def test_a_mark_at_the_end_of_a_compacted_segment_moves_on(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    partition = bench.partition(**COMPACTED)
    fill(bench, numbered(8, keys=2))
    bench.runtime.advance(1000)
    partition.roll()
    assert partition.durable.base == 0
    assert compact(bench)
    read = bench.log.read(AT, 0, bytes_max=1 << 20, horizon=Horizon.DURABLE).value
    assert (read.size_bytes, read.next_offset) == (partition.segments[0].size, 8)
    assert list(bench.values(horizon=Horizon.DURABLE)) == [6, 7]
    assert partition.marks == (0, 8, 8, 8)
    bench.settled(b"next", keys=[b"k"])
    assert list(bench.values(horizon=Horizon.DURABLE)) == [6, 7, 8]


@pytest.mark.parametrize("snapshot", [True, False])
def test_producers_go_on_after_compaction_and_restart(tmp_path: Path, snapshot: bool) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(**COMPACTED)

    def send(sequence: int, key: bytes = b"k") -> tuple[int, bool]:
        appended = bench.append(
            b"v%d" % sequence, keys=[key], producer_id=9, producer_epoch=1, base_sequence=sequence
        )
        return appended.base_offset, appended.duplicate

    for sequence in range(5):
        assert send(sequence) == (sequence, False)
    bench.append(b"by another", keys=[b"k"])
    partition.roll()
    assert compact(bench)
    assert bench.values() == {5: b"by another"}
    bench.store.close()
    if not snapshot:
        for path in partition.directory.glob("*.producers"):
            path.unlink()

    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(**COMPACTED)
    assert send(4) == (4, True)
    assert send(5) == (6, False)
    partition.roll()
    assert compact(bench)
    assert bench.values() == {6: b"v5"}
    # The emptied batch that told the sequence is not needed any more.
    offsets = []
    data = partition.segments[0].path(".log").read_bytes()
    position = 0
    while position < len(data):
        header = kernels.batch_header(data, position)
        offsets.append(header.base_offset)
        position += header.size
    assert offsets == [6]


def marker(producer_id: int, *, kind: int) -> memoryview:
    """A control batch as a coordinator writes it: 0 aborts, 1 commits."""
    data = batch.build(
        [Record(struct.pack(">hi", 0, 0), struct.pack(">hh", 0, kind))],
        timestamp_ms=1,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=-1,
        transactional=True,
    )
    data[22] |= batch.CONTROL
    struct.pack_into(">I", data, 17, kernels.crc32c(memoryview(data)[21:]))
    return memoryview(data)


@pytest.mark.parametrize("restart", [False, True])
def test_aborted_records_go_and_outdate_nothing(tmp_path: Path, restart: bool) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(**COMPACTED)

    def send(producer_id: int, sequence: int, key: bytes, value: bytes) -> None:
        bench.append(
            value,
            keys=[key],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )

    bench.append(b"good", keys=[b"a"])
    send(1, 0, b"a", b"aborted")
    send(2, 0, b"b", b"committed")
    bench.log.append(AT, marker(1, kind=0))
    bench.log.append(AT, marker(2, kind=1))
    send(1, 1, b"c", b"open")
    partition.roll()
    assert not compact(bench)  # a transaction is open in it
    bench.log.append(AT, marker(1, kind=1))
    partition.roll()
    assert compact(bench)
    if restart:
        bench.crash()
        bench = LogBench(tmp_path, flush_interval_ms=0)
        partition = bench.partition(**COMPACTED)
        assert len(partition.aborted) == 0
    values = {at: r.value for at, r in bench.read() if r.key in (b"a", b"b", b"c")}
    assert values == {0: b"good", 2: b"committed", 5: b"open"}
    assert partition.stable_offset == partition.end_offset == 7


def test_memory_is_bounded_and_the_rest_comes_next(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(**COMPACTED)
    history = numbered(300, keys=40) + numbered(300, keys=40, start=300)
    fill(bench, history)
    partition.roll()
    passes = 0
    while compact(bench, newest_bytes_max=3000):
        passes += 1
        assert passes < 100
        assert newest(bench) == dict(history)
    assert passes > 3
    assert bench.store.cleaned_offsets[AT] == 600
    assert len(keys_read(bench)) <= 600 / passes + 40


def test_damage_is_left_behind_and_costs_only_itself(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(**COMPACTED)
    fill(bench, [(b"key-%d" % number, b"v" * 60) for number in range(100)])
    fill(bench, [(b"key-%d" % number, b"w" * 60) for number in range(0, 100, 2)])
    partition.roll()
    victims = {}
    for number, position in ((0, 90), (2, 7), (4, 11)):  # a value, an offset, a length
        segment = partition.segments[number]
        found = segment.find(segment.base_offset + 4, patient=True)
        assert found is not None
        victims[found.offset] = b"key-%d" % found.offset
        with open(segment.path(".log"), "r+b") as file:
            file.seek(found.position + position)
            byte = file.read(1)
            file.seek(found.position + position)
            file.write(bytes([byte[0] ^ 4]))
    bench.crash()
    bench = LogBench(tmp_path, flush_interval_ms=100)
    partition = bench.partition(**COMPACTED)
    assert compact(bench)
    found_now = newest(bench)
    for number in range(100):
        key = b"key-%d" % number
        if number % 2 == 0:
            assert found_now[key] == b"w" * 60
        elif key not in victims.values():
            assert found_now[key] == b"v" * 60
    for segment in partition.segments[:-1]:
        data = segment.path(".log").read_bytes()
        scan = kernels.scan_batches(
            data, 0, len(data), file_position=0, segment_base=segment.base_offset,
            next_offset=segment.base_offset, index_interval=4096, bytes_since_entry=0,
            timestamp_max=-1, timestamp_max_offset=-1, verify=True, producers=False,
        )  # fmt: skip
        assert (scan.position, scan.flaw) == (len(data), 0)


def test_a_batch_that_cannot_be_opened_stays_and_outdates_nothing(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    bench.partition(**{**COMPACTED, "cleanup_compact": False})
    bench.append(b"readable", keys=[b"k"])
    odd = batch.build([Record(b"odd", b"k"), Record(b"odd", b"k")], timestamp_ms=1)
    odd[-11] = 0x7E  # the second record claims more bytes than there are
    struct.pack_into(">I", odd, 17, kernels.crc32c(memoryview(odd)[21:]))
    bench.plant(odd)
    partition = bench.partition(**COMPACTED)
    bench.append(b"x", b"y", keys=[b"z", b"z"])
    partition.roll()
    assert compact(bench)
    data = partition.segments[0].path(".log").read_bytes()
    assert batch.records_of(data, 0, bytes_max=1 << 20)[0][1].value == b"readable"
    assert bytes(odd[12:]) in data


def test_work_on_a_partition_that_changed_meanwhile_is_thrown_away(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    lane = bench.runtime.held_lanes
    for number, change in enumerate(("trim", "configure", "delete")):
        at = Partition("events", number)
        partition = bench.partition(at, **COMPACTED)
        for key, value in numbered(100, keys=3):
            bench.append(value, keys=[key], at=at)
        partition.sync_all()
        found = plan(partition, None, bench.runtime.now_ms())
        assert found is not None
        lane.add("compaction")
        over: list[bool] = []
        Compaction(bench.store, bench.runtime, found, lambda over=over: over.append(True)).start()
        if change == "trim":
            partition.trim(partition.segments[2].base_offset)
            bench.store.write_starts()
        elif change == "configure":
            bench.partition(at, segment_bytes=2048)
        else:
            bench.store.delete(at)
        lane.clear()
        bench.runtime.step()
        assert over == [True]
        assert bench.metrics.segments_compacted == 0
        assert at not in bench.store.cleaned_offsets
        if change != "delete":
            start = partition.start_offset
            assert list(bench.values(start, at=at)) == list(range(start, 100))
            assert not leftovers(partition)


def test_a_trim_between_commit_and_swap_takes_the_commit_back(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(**COMPACTED)
    fill(bench, numbered(100, keys=3))
    found = plan(partition, None, bench.runtime.now_ms())
    assert found is not None
    compaction = Compaction(bench.store, bench.runtime, found, lambda: None)
    commit = compaction._commit

    def commit_then_trim(outputs: Any) -> None:
        commit(outputs)
        assert list(partition.directory.glob("*.log.swap"))
        partition.trim(partition.segments[2].base_offset)
        bench.store.write_starts()

    compaction._commit = commit_then_trim  # type: ignore[method-assign]
    compaction.start()
    bench.runtime.step()
    assert not leftovers(partition)
    start = partition.start_offset
    assert list(bench.values(start)) == list(range(start, 100))
    bench.crash()
    again = LogBench(tmp_path)
    assert list(again.values(start)) == list(range(start, 100))


def test_a_partition_is_due_by_ratio_or_age(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    settings = {**COMPACTED, "cleanable_dirty_ratio_min": 0.6}
    partition = bench.partition(**settings)
    now = bench.runtime.now_ms()
    assert plan(partition, None, now) is None  # nothing there
    fill(bench, [(b"key-%d" % number, b"v" * 60) for number in range(200)])
    found = plan(partition, None, now)
    assert found is not None
    assert found.due
    assert found.dirty_ratio == 1
    assert compact(bench)
    fill(bench, [(b"other-%d" % number, b"v" * 60) for number in range(100)])
    cleaned = bench.store.cleaned_offsets[AT]
    found = plan(partition, cleaned, now)
    assert found is not None
    assert 0.2 < found.dirty_ratio < 0.5
    assert not found.due
    bench.partition(**settings, compaction_lag_ms_max=1000)
    found = plan(partition, cleaned, now + 2000)
    assert found is not None
    assert found.due
    assert partition.active.size == 0, "the overdue active segment was rolled"
    bench.partition(**settings, compaction_lag_ms_min=5000)
    assert plan(partition, cleaned, now + 4000) is None
    assert plan(partition, cleaned, now + 6000) is not None
    bench.partition(**{**settings, "cleanup_compact": False})
    assert plan(partition, cleaned, now) is None


def test_a_checkpoint_that_cannot_be_right_counts_as_none(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(**COMPACTED)
    fill(bench, numbered(100, keys=3))
    found = plan(partition, 5000, bench.runtime.now_ms())
    assert found is not None
    assert found.first_dirty == 0


def test_the_dirtiest_comes_first_and_all_get_their_turn(tmp_path: Path) -> None:
    bench = LogBench(
        tmp_path, flush_interval_ms=0, housekeeping_interval_ms=10_000, retention_interval_ms=10_000
    )
    ats = [Partition("events", index) for index in range(3)]
    for at in ats:
        bench.partition(at, **COMPACTED)
        for key, value in numbered(100, keys=50):
            bench.append(value, keys=[key], at=at)
    compact(bench, ats[0])
    compact(bench, ats[2])
    for at, more in zip(ats, (60, 0, 200), strict=True):
        for key, value in numbered(more, keys=50, start=100):
            bench.append(value, keys=[key], at=at)
    before = dict(bench.store.cleaned_offsets)
    order: list[Partition] = []
    write = bench.store.write_cleaned_offsets

    def noting() -> None:
        order.extend(
            at
            for at, offset in bench.store.cleaned_offsets.items()
            if offset and before.get(at) != offset and at not in order
        )
        write()

    bench.store.write_cleaned_offsets = noting  # type: ignore[method-assign]
    house = Housekeeping(bench.store, bench.runtime, bench.config)
    house.start()
    bench.runtime.advance(2000)
    assert order == [ats[1], ats[2], ats[0]]
    house.stop()
    for at, more in zip(ats, (60, 0, 200), strict=True):
        assert newest(bench, at) == dict(numbered(100 + more, keys=50))


def test_stopping_in_the_middle_leaves_nothing_that_harms(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(**COMPACTED)
    fill(bench, numbered(100, keys=3))
    house = Housekeeping(bench.store, bench.runtime, bench.config)
    house.start()
    bench.runtime.held_lanes.add("compaction")
    bench.runtime.advance(2000)
    house.stop()
    bench.runtime.held_lanes.clear()
    bench.runtime.step()
    assert list(bench.values()) == list(range(100))
    bench.store.close()
    again = LogBench(tmp_path)
    assert list(again.values()) == list(range(100))
    assert not leftovers(partition)

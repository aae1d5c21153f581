"""A data directory read from outside: how far, what is hidden, what is lost, what is exchanged."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.support import compactions
from tests.support.contents import batch_at
from tests.support.logs import AT, LogBench

from pentalog import kernels
from pentalog.kernels import column_facts, decode_columns
from pentalog.log.reader import DirectoryReader, DirectoryUnreadable, SegmentFeed, Swapping
from pentalog.log.retention import apply_retention
from pentalog.model import batch
from pentalog.model.pieces import Gone, opened
from pentalog.model.settings import LogSettings
from pentalog.model.types import Partition, Record

INTERVAL_MS = 500


def published(bench: LogBench) -> DirectoryReader:
    bench.runtime.advance(INTERVAL_MS)
    return DirectoryReader(bench.directory)


def offsets(reader: DirectoryReader, low: int, high: int, **options: Any) -> list[int]:
    """Every offset that a reader of `low..high` gets."""
    feed = SegmentFeed(reader.partition(AT), low, high, bytes_max=options.get("bytes_max", 1 << 12))
    found: list[int] = []
    cursor = low
    while (piece := feed.read()) is not None:
        data = opened(piece.data)
        columns = decode_columns(
            data,
            0,
            len(data),
            low=cursor,
            high=high,
            columns=column_facts.OFFSETS,
            aborted=piece.aborted,
            picks=(),
            doors=(b"kafka",),
        )
        assert columns.flaw == 0
        assert columns.offsets is not None
        found += struct.unpack(f"={columns.rows}q", columns.offsets)
        cursor = max(cursor, columns.next_offset)
    assert max(cursor, feed._cursor) >= high
    return found


def drain(feed: SegmentFeed) -> None:
    while feed.read() is not None:
        pass


def filled(tmp_path: Path, *, count: int = 60, **settings: Any) -> LogBench:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    bench.partition(segment_bytes=2048, index_interval_bytes=256, **settings)
    now = bench.runtime.now_ms()
    for number in range(count):
        bench.append(b"%03d" % number * 30, timestamp_ms=now - (count - number) * 60_000)
    return bench


def test_every_range_is_read_as_it_was_asked_for(tmp_path: Path) -> None:
    reader = published(filled(tmp_path))
    assert reader.marks()[AT].stable == 60
    for low, high in ((0, 60), (0, 1), (17, 18), (9, 31), (59, 60), (5, 5)):
        assert offsets(reader, low, high) == list(range(low, high))


def test_a_batch_larger_than_the_buffer_is_read(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    bench.partition()
    bench.append(*[b"x" * 500] * 40)
    bench.append(b"y")
    assert offsets(published(bench), 3, 41, bytes_max=256) == list(range(3, 41))


def test_what_is_not_durable_or_not_published_is_not_shown(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition()
    bench.settled(b"safe")
    bench.append(b"not yet")
    bench.store._publish()  # between two syncs
    reader = DirectoryReader(bench.directory)
    assert reader.marks()[AT].stable == 1
    bench.runtime.advance(INTERVAL_MS)
    assert reader.marks()[AT].stable == 2


def test_an_open_transaction_holds_the_mark_back_and_an_aborted_one_is_hidden(
    tmp_path: Path,
) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    bench.partition()
    bench.append(b"plain")
    producer = {"producer_id": 9, "producer_epoch": 0}
    bench.append(b"a", b"b", base_sequence=0, transactional=True, **producer)
    reader = published(bench)
    assert (reader.marks()[AT].stable, reader.marks()[AT].durable) == (1, 3)
    for commit, first in ((False, 0), (True, 2)):
        if commit:
            bench.append(b"c", base_sequence=first, transactional=True, **producer)
        marker = batch.build_marker(commit=commit, timestamp_ms=bench.runtime.now_ms(), **producer)
        bench.log.append(AT, memoryview(marker))
    bench.append(b"end")
    reader = published(bench)
    assert reader.marks()[AT].stable == 7
    assert offsets(reader, 0, 7) == [0, 4, 6]
    assert offsets(reader, 2, 7) == [4, 6]


def test_what_retention_took_is_named_exactly(tmp_path: Path) -> None:
    bench = filled(tmp_path, retention_ms=30 * 60_000, file_delete_delay_ms=0)
    reader = published(bench)
    feed = SegmentFeed(reader.partition(AT), 3, 60, bytes_max=1 << 12)
    apply_retention(bench.store.get(AT), bench.runtime.now_ms())
    bench.runtime.advance(INTERVAL_MS)
    start = bench.store.get(AT).start_offset
    with pytest.raises(Gone) as gone:
        feed.read()
    assert (gone.value.first, gone.value.behind) == (3, start)
    piece = feed.read()
    assert piece is not None
    assert piece.next_offset > start


def test_a_reader_in_the_middle_of_a_segment_finishes_it_before_it_misses_the_next(
    tmp_path: Path,
) -> None:
    bench = filled(tmp_path, retention_ms=30 * 60_000, file_delete_delay_ms=0)
    feed = SegmentFeed(published(bench).partition(AT), 0, 60, bytes_max=1 << 12)
    first = feed.read()
    assert first is not None
    apply_retention(bench.store.get(AT), bench.runtime.now_ms())
    bench.runtime.advance(INTERVAL_MS)
    with pytest.raises(Gone) as gone:
        drain(feed)
    assert gone.value.first >= first.next_offset
    assert gone.value.behind == bench.store.get(AT).start_offset


def test_damage_is_named_exactly(tmp_path: Path) -> None:
    bench = filled(tmp_path)
    path = next(iter(sorted(bench.store.get(AT).directory.glob("*.log"))))
    sizes = len(path.read_bytes())
    data = bytearray(path.read_bytes())
    header = struct.unpack_from(">i", data, 8)[0] + 12
    data[header + 8 : header + 17] = b"\xff" * 9
    path.write_bytes(data)
    assert len(data) == sizes
    feed = SegmentFeed(published(bench).partition(AT), 0, 60, bytes_max=1 << 12)
    piece = feed.read()
    assert piece is not None
    assert piece.next_offset == 1
    with pytest.raises(Gone) as gone:
        feed.read()
    assert (gone.value.first, gone.value.behind) == (1, 2)
    following = feed.read()
    assert following is not None
    assert following.next_offset > 2


def test_nothing_is_opened_while_a_segment_is_being_exchanged(tmp_path: Path) -> None:
    bench = filled(tmp_path)
    reader = published(bench)
    covers = bench.store.get(AT).directory / "00000000000000000000.covers.swap"
    covers.write_text("1 0 end\n")
    feed = SegmentFeed(reader.partition(AT), 0, 60, bytes_max=1 << 12)
    with pytest.raises(Swapping):
        feed.read()
    covers.unlink()
    assert feed.read() is not None


def test_offsets_are_found_by_time(tmp_path: Path) -> None:
    bench = filled(tmp_path)
    now = bench.runtime.now_ms()
    partition = published(bench).partition(AT)
    for number in (0, 1, 10, 33, 59):
        when = now - (60 - number) * 60_000
        assert partition.offset_at(when, limit=60) == number
        assert partition.offset_at(when - 1, limit=60) == number
    assert partition.offset_at(now, limit=60) == 60
    assert partition.offset_at(0, limit=60) == 0


def test_cuts_lie_inside_and_ascend(tmp_path: Path) -> None:
    bench = filled(tmp_path)
    partition = published(bench).partition(AT)
    cuts = [offset for offset, _ in partition.cuts(4, 57, 1000)]
    assert cuts == sorted(set(cuts))
    assert 4 < len(cuts) < 20
    assert all(4 < cut < 57 for cut in cuts)


@pytest.mark.parametrize("index", ["whole", "none", "half", "damaged", "too long"])
def test_cuts_need_no_index(tmp_path: Path, index: str) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    bench.partition(segment_bytes=1 << 20, index_interval_bytes=256)
    for number in range(200):
        bench.append(*[b"%03d" % number * 30] * 5)
    bench.partition().active.persist_indexes()
    size = bench.partition().active.size
    path = next(bench.directory.glob("*/*.index"))
    packed = path.read_bytes()
    if index == "none":
        path.unlink()
    elif index != "whole":
        wrong = {
            "half": packed[: len(packed) // 16 * 8],
            "damaged": bytes(255 - one for one in packed),
            "too long": packed + b"\xff" * 80,
        }
        path.write_bytes(wrong[index])
    partition = published(bench).partition(AT)
    cuts = partition.cuts(0, 1000, 10_000)
    assert len(cuts) in (size // 10_000, size // 10_000 - 1)
    assert all(cut % 5 == 0 for cut, _ in cuts)
    # An index has an entry in 256 bytes, and a batch of this test has about 520.
    assert all(10_000 - 800 <= before <= 10_000 + 800 for _, before in cuts)
    some = [offset for offset, _ in partition.cuts(333, 667, 2000)]
    assert 10 < len(some) < 30
    assert all(333 < cut < 667 for cut in some)


def test_a_batch_larger_than_a_part_is_one_part(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    bench.partition(segment_bytes=1 << 20)
    for size in (10, 200_000, 10, 10, 90_000, 10):
        bench.append(b"x" * size)
    for path in bench.directory.glob("*/*.index"):
        path.unlink()
    partition = published(bench).partition(AT)
    assert [offset for offset, _ in partition.cuts(0, 6, 1000)] == [1, 2, 4, 5]
    assert [offset for offset, _ in partition.cuts(2, 6, 1 << 20)] == []


def test_a_topic_made_anew_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    bench = filled(tmp_path)
    reader = published(bench)
    bench.store.delete(AT)
    bench.runtime.advance(INTERVAL_MS)
    assert AT not in reader.marks()
    with pytest.raises(DirectoryUnreadable, match="deleted"):
        SegmentFeed(reader.partition(AT), 0, 60, bytes_max=1 << 12).read()
    bench.partition()
    bench.runtime.advance(INTERVAL_MS)
    assert reader.marks()[AT].stable == 0


def test_files_that_end_too_early_are_said_to(tmp_path: Path) -> None:
    bench = filled(tmp_path)
    reader = published(bench)
    path = max(bench.store.get(AT).directory.glob("*.log"))
    path.write_bytes(b"")
    feed = SegmentFeed(reader.partition(AT), 55, 60, bytes_max=1 << 12)
    with pytest.raises(DirectoryUnreadable, match="start a broker"):
        drain(feed)


def test_a_clean_stop_leaves_everything_readable(tmp_path: Path) -> None:
    bench = filled(tmp_path)
    bench.append(b"last")
    bench.store.close()
    reader = DirectoryReader(tmp_path)
    assert reader.marks()[AT].stable == 61
    assert offsets(reader, 0, 61) == list(range(61))


def test_marks_that_cannot_be_believed_are_not(tmp_path: Path) -> None:
    bench = filled(tmp_path)
    reader = published(bench)
    path = tmp_path / "pentalog.marks"
    text = path.read_text()
    for wrong in ("", text[:-3], text.replace(" 60", " 61")):
        path.write_text(wrong)
        with pytest.raises(DirectoryUnreadable, match="start a broker"):
            reader.marks()


def test_another_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DirectoryUnreadable, match=r"no pentalog\.format"):
        DirectoryReader(tmp_path)


def test_names_and_many_partitions(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    places = [Partition("a b/ü", 0), Partition("x", 0), Partition("x", 1)]
    for at in places:
        bench.partition(at)
    bench.append(b"1", at=places[0])
    marks = published(bench).marks()
    assert {at: one.stable for at, one in marks.items()} == dict(
        zip(places, (1, 0, 0), strict=True)
    )
    assert marks[places[1]].topic_id == LogBench.topic_id("x")


def test_a_new_directory_has_marks_at_once(tmp_path: Path) -> None:
    LogBench(tmp_path)
    assert DirectoryReader(tmp_path).marks() == {}


def test_a_compacted_partition_is_read_without_what_is_gone(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    bench.partition(
        segment_bytes=1024, index_interval_bytes=128, cleanup_compact=True, cleanup_delete=False
    )
    compactions.fill(bench, compactions.numbered(120, 7))
    reader = published(bench)
    before = offsets(reader, 0, 120)
    feed = SegmentFeed(reader.partition(AT), 0, 120, bytes_max=1 << 12)
    assert feed.read() is not None
    assert compactions.compact(bench)
    bench.runtime.advance(10 * 60_000)  # the old files have been removed by now
    reader = published(bench)
    kept = offsets(reader, 0, 120)
    assert before == list(range(120))
    assert set(range(113, 120)) <= set(kept)
    assert len(kept) < 60
    assert offsets(reader, 40, 119) == [offset for offset in kept if 40 <= offset < 119]
    drain(feed)  # begun on the old files, it ends on the new ones, and misses nothing kept


@pytest.mark.parametrize("bytes_max", [64, 300, 1 << 12])
def test_ranges_of_a_compacted_partition_end_where_they_should(
    tmp_path: Path, bytes_max: int
) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    bench.partition(segment_bytes=600, cleanup_compact=True, cleanup_delete=False)
    compactions.fill(bench, compactions.numbered(60, 5))
    assert compactions.compact(bench)
    reader = published(bench)
    kept = offsets(reader, 0, 60)
    for low in range(0, 60, 7):
        for high in range(low, 61, 5):
            found = offsets(reader, low, high, bytes_max=bytes_max)
            assert found == [offset for offset in kept if low <= offset < high]


@pytest.mark.parametrize(
    ("at", "lost"),
    [(16, range(30, 31)), (10, range(30, 40))],
    ids=["its format", "its length"],
)
def test_batches_in_a_damaged_value_are_not_read(tmp_path: Path, at: int, lost: range) -> None:
    """Where the length is damaged too, what the index knows next is read next."""
    bench = LogBench(tmp_path, flush_interval_ms=0)
    partition = bench.partition(index_interval_bytes=256)
    for number in range(30):
        bench.append(b"%03d" % number * 30)
    bench.append(batch_at(31, b"phantom") * 3)
    for number in range(31, 60):
        bench.append(b"%03d" % number * 30)
    found = partition.active.find(30, patient=True)
    assert found is not None
    path = partition.active.path(".log")
    partition.roll()
    reader = published(bench)
    data = bytearray(path.read_bytes())
    data[found.position + at] ^= 0xFF
    path.write_bytes(data)
    feed = SegmentFeed(reader.partition(AT), 0, 60, bytes_max=1 << 12)
    values: list[bytes | None] = []
    gone: list[Gone] = []
    while True:
        try:
            piece = feed.read()
        except Gone as loss:
            gone.append(loss)
            continue
        if piece is None:
            break
        values += [record.value for record in records_in(piece.data)]
    assert b"phantom" not in values
    (loss,) = gone
    assert loss.first == 30
    assert loss.behind - 1 in lost
    kept = [number for number in range(60) if not 30 <= number < loss.behind]
    assert values == [b"%03d" % number * 30 for number in kept]


def records_in(data: memoryview) -> Iterator[Record]:
    position = 0
    while position < len(data):
        for _, record in batch.records_of(bytes(data), position, bytes_max=1 << 20):
            yield record
        position += kernels.batch_header(data, position).size


def test_a_limit_does_not_count_for_a_new_topic_of_the_same_name(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=60_000)
    bench.partition()
    for number in range(20):
        bench.settled(b"%d" % number)
    reader = published(bench)
    limit = reader.marks()[AT].stable
    bench.store.delete(AT)
    bench.store.create(AT, UUID(int=77), LogSettings())
    bench.append(b"not durable yet")
    for _ in range(2):
        with pytest.raises(DirectoryUnreadable, match="was deleted"):
            drain(SegmentFeed(reader.partition(AT), 0, limit, bytes_max=1 << 12))
        bench.runtime.advance(INTERVAL_MS)  # the marks name the new topic as well
    bench.settled(b"durable")
    bench.runtime.advance(INTERVAL_MS)
    assert offsets(reader, 0, 2) == [0, 1]

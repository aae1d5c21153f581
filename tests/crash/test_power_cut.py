"""Power cuts with a chosen outcome: what was acknowledged or shown survives each of them."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from tests.simulation.disk import PAGE
from tests.support.disks import (
    DATA,
    DiskBench,
    check_lives,
    cut_power,
    everything,
    find_inode,
    lose_pages,
    punch_hole,
)
from tests.support.logs import AT, LogBench
from tests.support.runtimes import SteppedRuntime

from pentalog import kernels
from pentalog.broker.producers import LocalProducers
from pentalog.broker.state import State
from pentalog.log.retention import apply_retention
from pentalog.model.errors import StorageFailed
from pentalog.model.types import Partition

OTHER = Partition("other", 0)
LOG = "events-0/00000000000000000000.log"
DAY_MS = 24 * 3600 * 1000
LARGE = b"L" * 700
"""Of these a segment of 2000 bytes has room for two."""


@pytest.fixture(autouse=True)
def _journal_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pentalog.log.flusher._JOURNAL_PAYS_AFTER", 1)


def open_with_journal() -> DiskBench:
    """A life whose journal is ready and whose files' own syncs are late."""
    bench = DiskBench()
    bench.partition(OTHER)
    bench.settled(b"first", at=OTHER)
    assert bench.store.journal.ready
    bench.runtime.held_lanes.add("sync")
    return bench


def write(bench: LogBench, count: int, value: bytes = LARGE) -> dict[int, bytes]:
    """Acknowledged records by their offsets."""
    values = [b"%d:" % number + value for number in range(count)]
    return {bench.settled(value).base_offset: value for value in values}


def boundaries(data: bytes | bytearray) -> list[int]:
    """Where the batches of a segment begin."""
    found = [0]
    while found[-1] < len(data):
        found.append(found[-1] + kernels.batch_header(bytes(data), found[-1]).size)
    return found[:-1]


# Records that are in the journal


@pytest.mark.parametrize(
    "pages", [(0,), (1,), (1, 3), (0, 2, 3), (4,)], ids=lambda pages: f"pages {pages}"
)
def test_zeros_in_the_middle_are_refilled(pages: tuple[int, ...]) -> None:
    bench = open_with_journal()
    bench.partition()
    values = write(bench, 25)
    bench.crash()
    for page in pages:
        size = len(find_inode(bench.disk, LOG).cache)
        punch_hole(bench.disk, LOG, page * PAGE, min((page + 1) * PAGE, size))
    cut_power(bench.disk, kept=everything)
    check_lives(bench.again(), {AT: values})


def test_a_file_longer_than_its_data_is_refilled() -> None:
    bench = open_with_journal()
    bench.partition(segment_bytes=2000)
    values = write(bench, 9)
    bench = bench.restart("cut", zeroed=lambda path: path.endswith((".log", "index")))
    check_lives(bench, {AT: values})


@pytest.mark.parametrize("batches", [0, 1, 2, 3])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_sealed_segment_that_ends_at_a_batch_boundary_is_refilled(
    number: int, batches: int
) -> None:
    bench = open_with_journal()
    bench.partition(segment_bytes=1500)
    values = write(bench, 16, b"v" * 250)
    segments = bench.store.get(AT).segments
    assert len(segments) >= 4
    bench.crash()
    inode = find_inode(bench.disk, f"events-0/{segments[number].base_offset:020}.log")
    inode.truncate(boundaries(inode.cache)[batches])
    cut_power(bench.disk, kept=everything)
    check_lives(bench.again(), {AT: values})


def test_everything_that_was_not_synced_is_refilled() -> None:
    bench = open_with_journal()
    bench.partition(segment_bytes=2000)
    values = write(bench, 9)
    # Among it is the content of partition.metadata, unless that is synced: it names the topic
    # whose entries the journal has.
    check_lives(bench.restart("cut"), {AT: values})


# Without a journal


def test_without_a_journal_an_acknowledgement_syncs_all_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pentalog.log.flusher._JOURNAL_PAYS_AFTER", 1 << 30)
    bench = DiskBench()
    bench.partition(segment_bytes=2000)
    values = write(bench, 5)
    bench = bench.restart("cut")
    check_lives(bench, {AT: values}, ("cut", "kill", "cut", "stop", "cut"))


def test_names_made_by_a_killed_process_are_synced_by_the_next_one() -> None:
    bench = DiskBench()
    bench.partition(segment_bytes=2000)
    values = {bench.append(LARGE).base_offset: LARGE for _ in range(5)}
    bench = bench.restart("kill")
    assert bench.durable(AT) == values, "consumers see them from here on"
    check_lives(bench.restart("cut"), {AT: values})


def test_what_a_failed_sync_left_in_memory_is_written_again() -> None:
    bench = DiskBench()
    bench.partition()
    bench.code = errno.EIO
    bench.refuse = lambda call, path: call == "sync" and path.startswith("events-0/")
    with pytest.raises(StorageFailed):
        bench.settled(LARGE)
    for name in bench.names("events-0"):
        lose_pages(bench.disk, f"events-0/{name}")
    bench = bench.restart("kill")
    values = {0: LARGE}
    assert bench.durable(AT) == values, "consumers see it from here on"
    bench = bench.restart("cut")
    assert bench.durable(AT) == values
    assert bench.store.found() == {AT: LogBench.topic_id("events")}
    check_lives(bench, {AT: values})


# What goes with old segments


@pytest.mark.parametrize("by", ["deletion", "retention"])
def test_producers_outlive_the_segments_that_held_their_batches(by: str) -> None:
    bench = DiskBench()
    partition = bench.partition(segment_bytes=2000, retention_bytes=3000, file_delete_delay_ms=0)
    identity = {"producer_id": 7, "producer_epoch": 0}
    for sequence in range(4):
        bench.settled(LARGE, base_sequence=sequence, **identity)
    bench.runtime.advance(6_000)  # checkpoints, with a snapshot of the producers
    write(bench, 8)
    bench.runtime.advance(6_000)
    if by == "deletion":
        partition.trim(9)
        bench.store.write_starts()
    else:
        assert apply_retention(partition, bench.runtime.now_ms())
        bench.store.write_starts()
    bench.runtime.advance(1_000)
    assert partition.segments[0].base_offset >= 4
    # Names survive, removed files stay removed, and the data of small files does not survive.
    bench = bench.restart("cut", kept=lambda path: not path.endswith(".producers"))
    end = bench.store.get(AT).end_offset
    for _ in range(2):
        assert bench.append(LARGE, base_sequence=3, **identity).duplicate
        assert bench.append(LARGE, base_sequence=2, **identity).duplicate
        assert bench.store.get(AT).end_offset == end
        bench = bench.restart("cut")


ONCE = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}


def open_with_producer() -> DiskBench:
    """Several segments; the first batch is of an idempotent producer."""
    bench = DiskBench()
    bench.partition(segment_bytes=1500)
    bench.settled(b"exactly once", **ONCE)
    for _ in range(4):
        bench.settled(b"x" * 900)
    return bench


def assert_repetition_known(bench: DiskBench) -> None:
    bench.partition(segment_bytes=1500)
    again = bench.settled(b"exactly once", **ONCE)
    assert again.duplicate
    assert again.base_offset == 0


def test_producers_outlive_them_also_if_the_end_of_the_log_is_lost() -> None:
    bench = open_with_producer()
    partition = bench.store.get(AT)
    bench.append(b"not synced yet")
    partition.trim(partition.segments[2].base_offset)
    bench.store.write_starts()
    assert partition.segments[0].base_offset > 0
    # The names of the deleted segments reach the disk, and of the records only what was synced.
    bench = bench.restart("cut", kept=lambda path: path == "events-0")
    for _ in range(2):
        assert_repetition_known(bench)
        bench = bench.restart("cut")


def test_segments_stay_if_the_log_cannot_be_synced() -> None:
    bench = open_with_producer()
    partition = bench.store.get(AT)
    bench.code = errno.EIO
    bench.refuse = lambda call, path: call == "sync" and path.endswith(".log")
    partition.trim(partition.segments[2].base_offset)
    bench.store.write_starts()
    assert partition.failed
    assert partition.segments[0].base_offset == 0
    assert partition.start_offset > 0
    assert_repetition_known(bench.restart("kill"))


@pytest.mark.parametrize("lost", ["its data", "its newest entry"])
def test_retention_does_not_follow_a_time_index_that_lost(lost: str) -> None:
    interval_bytes = 4096 if lost == "its data" else 200  # one entry in each segment, or several
    settings = {
        "segment_bytes": 2500,
        "index_interval_bytes": interval_bytes,
        "retention_ms": DAY_MS,
    }
    bench = DiskBench()
    bench.partition(**settings)
    values: dict[int, bytes] = {}
    for number in range(10):
        age_ms = 0 if number % 3 == 2 else 2 * DAY_MS  # the last one of a segment is new
        timestamp_ms = bench.runtime.now_ms() - age_ms
        values[bench.settled(LARGE, timestamp_ms=timestamp_ms).base_offset] = LARGE
        bench.runtime.advance(6_000)  # syncs, recovery points, and indexes so far
    assert len(bench.store.get(AT).segments) == 4
    bench.crash()
    if lost == "its data":
        cut_power(bench.disk, zeroed=lambda path: path.endswith("index"))
    else:
        for path, inode in bench.disk.root.walk_files():
            if path.endswith(".timeindex") and inode.sizes:
                inode.truncate(inode.sizes[0])  # it had grown, and that was not synced
        cut_power(bench.disk, kept=everything)
    bench = bench.again()
    bench.partition(**settings)
    assert apply_retention(bench.store.get(AT), bench.runtime.now_ms()) == 0
    check_lives(bench, {AT: values})


# Where the page cache is good enough


def test_a_log_that_ends_before_its_start_continues_there() -> None:
    bench = DiskBench(flush_interval_ms=0)
    partition = bench.partition()
    write(bench, 5)
    bench.files.sync_directory(DATA)
    partition.sync_all()
    write(bench, 15)
    partition.trim(15)
    bench.store.write_starts()
    bench = bench.restart("cut", kept=lambda path: path.endswith("partition.metadata"))
    values = {bench.settled(LARGE).base_offset: LARGE for _ in range(3)}
    assert min(values) == 15
    check_lives(bench, {AT: values}, ("kill", "stop", "kill"))


@pytest.mark.parametrize("base", [2, 4, 8], ids=lambda base: f"segment {base}")
def test_without_syncs_the_log_ends_at_its_first_flaw(base: int) -> None:
    bench = DiskBench(flush_interval_ms=0)
    bench.partition(segment_bytes=2000)
    values = write(bench, 10)
    bench.crash()
    path = f"events-0/{base:020}.log"
    second = boundaries(find_inode(bench.disk, path).cache)[1]
    punch_hole(bench.disk, path, second, second + 100)
    cut_power(bench.disk, kept=everything)
    kept = {offset: value for offset, value in values.items() if offset <= base}
    check_lives(bench.again(), {AT: kept}, ("kill", "stop", "kill"))


def test_without_syncs_a_flaw_in_the_active_segment_ends_the_log() -> None:
    bench = DiskBench(flush_interval_ms=0)
    bench.partition()
    values = write(bench, 30)
    bench.runtime.advance(6_000)  # the index knows where batches behind the flaw begin
    bench.crash()
    at = boundaries(find_inode(bench.disk, LOG).cache)[11]
    punch_hole(bench.disk, LOG, at, at + 100)
    cut_power(bench.disk, kept=everything)
    kept = {offset: value for offset, value in values.items() if offset < 11}
    check_lives(bench.again(), {AT: kept}, ("kill", "stop", "kill"))


def test_without_syncs_no_producer_id_is_given_twice(tmp_path: Path) -> None:
    """A power cut takes the newest commits of the state: it is as it was some time ago."""
    now, earlier = tmp_path / "now", tmp_path / "earlier"
    now.mkdir()
    given: list[int] = []
    for life in range(4):
        runtime = SteppedRuntime()
        state = State(now / "state", runtime, synced=False)
        state.open()
        producers = LocalProducers(state)
        producers.open()
        runtime.step()
        given += [producers.identify().value.producer_id for _ in range(5)]
        if life == 0:
            state.close()
            runtime.step()
            shutil.copytree(now, earlier)
        else:
            state.abandon()
            shutil.rmtree(now)
            shutil.copytree(earlier, now)
    assert len(set(given)) == len(given)

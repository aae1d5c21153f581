"""Records that were acknowledged before a question are in its answer, durable or not until then."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.support.logs import AT, LogBench

from pentalog.broker.log import COMMIT_WAIT_MS_MAX
from pentalog.broker.port import Waiting
from pentalog.log.files import Handle, RealFiles
from pentalog.log.flusher import JOURNAL_LANE, SYNC_LANE
from pentalog.model.types import Horizon, Partition

OTHER = Partition("events", 1)


class RefusingFiles(RealFiles):
    """A disk that no sync of a file reaches once it is broken."""

    broken = False

    def sync(self, file: Handle) -> None:
        if self.broken:
            raise OSError(errno.EIO, "injected", str(file.path))
        super().sync(file)


@pytest.fixture
def bench(tmp_path: Path) -> LogBench:
    made = LogBench(tmp_path, files=RefusingFiles())
    made.partition()
    made.partition(OTHER)
    return made


def hold_disk(bench: LogBench) -> None:
    bench.runtime.held_lanes |= {JOURNAL_LANE, SYNC_LANE}


def release_disk(bench: LogBench) -> None:
    bench.runtime.held_lanes.clear()
    bench.runtime.step()


def break_disk(bench: LogBench) -> None:
    assert isinstance(bench.files, RefusingFiles)
    bench.files.broken = True


def wait(
    bench: LogBench,
    offset: int = 0,
    *,
    timeout_ms: int = 0,
    bytes_min: int = 1,
    horizon: Horizon = Horizon.DURABLE,
) -> Waiting:
    return bench.log.wait({AT: offset}, bytes_min=bytes_min, horizon=horizon, timeout_ms=timeout_ms)


def test_the_ends_are_ready_after_one_commit_without_a_timer(bench: LogBench) -> None:
    bench.append(b"a", b"b")
    bench.append(b"c", at=OTHER)
    ends = bench.log.ends([AT, OTHER, Partition("nothing", 0)])
    assert not ends.ready
    bench.runtime.step()
    assert ends.value == {AT: 2, OTHER: 1}
    assert bench.log.marks(AT).durable == 2


def test_the_ends_of_a_durable_log_are_ready_at_once(bench: LogBench) -> None:
    bench.settled(b"a")
    assert bench.log.ends([AT, OTHER]).value == {AT: 1, OTHER: 0}


def test_without_syncs_nothing_is_waited_for(tmp_path: Path) -> None:
    bench = LogBench(tmp_path, flush_interval_ms=0)
    bench.partition()
    bench.append(b"a")
    assert bench.log.ends([AT]).value == {AT: 1}
    assert wait(bench).value is True


def test_many_readers_share_one_commit(bench: LogBench) -> None:
    for _ in range(40):
        bench.settled(b"x")  # until the journal is in use
    bench.append(b"y")
    before = bench.metrics.syncs
    ends = [bench.log.ends([AT]) for _ in range(20)]
    waits = [wait(bench, 40) for _ in range(20)]
    bench.runtime.step()
    assert all(one.value == {AT: 41} for one in ends)
    assert all(one.value for one in waits)
    assert bench.metrics.syncs == before + 1


def test_a_partition_that_cannot_sync_is_told_as_far_as_it_is_durable(bench: LogBench) -> None:
    bench.settled(b"a")
    bench.append(b"b")
    break_disk(bench)
    ends, waiting = bench.log.ends([AT]), wait(bench, 1)
    assert not ends.ready
    bench.runtime.step()
    assert ends.value == {AT: 1}
    assert waiting.value is False
    assert bench.log.ends([AT]).value == {AT: 1}, "at once from then on"
    assert wait(bench, 1).value is False
    late = wait(bench, 1, timeout_ms=500)
    bench.runtime.advance(501)
    assert late.value is False


def test_a_deleted_partition_ends_the_wait(bench: LogBench) -> None:
    bench.settled(b"c", at=OTHER)
    bench.append(b"a")
    ends, waiting = bench.log.ends([AT, OTHER]), wait(bench)
    bench.store.delete(AT)
    assert ends.value == {OTHER: 1}
    assert waiting.value is True, "the next read is refused"


def test_one_deleted_while_another_is_committed_is_left_out(bench: LogBench) -> None:
    bench.settled(b"c", at=OTHER)
    bench.append(b"a")
    ends = bench.log.ends([AT, OTHER])
    bench.store.delete(OTHER)
    bench.runtime.step()
    assert ends.value == {AT: 1}


def test_a_wait_without_time_waits_for_the_commit_only(bench: LogBench) -> None:
    assert wait(bench).value is False
    bench.append(b"a")
    waiting = wait(bench)
    assert not waiting.ready
    bench.runtime.step()
    assert waiting.value is True
    assert wait(bench, 1).value is False
    assert not bench.store.get(AT).watchers


def test_time_that_ends_before_the_commit_does_not_hide_a_record(bench: LogBench) -> None:
    hold_disk(bench)
    bench.append(b"a")
    waiting = wait(bench, timeout_ms=5)
    bench.runtime.advance(50)
    assert not waiting.ready
    release_disk(bench)
    assert waiting.value is True


def test_a_late_wait_ends_with_the_commit_also_without_enough(bench: LogBench) -> None:
    hold_disk(bench)
    bench.append(b"a")
    waiting = wait(bench, timeout_ms=5, bytes_min=10_000)
    bench.runtime.advance(50)
    assert not waiting.ready
    release_disk(bench)
    assert waiting.value is False
    assert not bench.store.get(AT).watchers


def test_a_cancelled_wait_is_never_filled(bench: LogBench) -> None:
    bench.append(b"a")
    waiting = wait(bench)
    waiting.cancel()
    bench.runtime.step()
    assert not waiting.ready


def test_a_stopping_broker_ends_late_waits(bench: LogBench) -> None:
    hold_disk(bench)
    bench.append(b"a")
    waiting = wait(bench)
    bench.log.stop_waiting()
    assert waiting.value is False
    release_disk(bench)


def test_records_of_an_open_transaction_do_not_hold_up_the_answer(bench: LogBench) -> None:
    who = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    bench.append(b"undecided", transactional=True, **who)
    waiting = wait(bench, horizon=Horizon.STABLE)
    bench.runtime.step()
    assert waiting.value is False
    assert bench.log.marks(AT)[:3] == (0, 0, 1)


def test_a_reader_of_everything_written_asks_for_no_commit(bench: LogBench) -> None:
    bench.append(b"a")
    before = bench.metrics.syncs
    assert wait(bench, horizon=Horizon.END).value is True
    assert wait(bench, 1, horizon=Horizon.END).value is False
    bench.runtime.step()
    assert bench.metrics.syncs == before


def test_a_disk_that_does_not_answer_holds_up_no_reader_for_ever(bench: LogBench) -> None:
    bench.settled(b"a")
    hold_disk(bench)
    bench.append(b"b")
    ends, waiting = bench.log.ends([AT]), wait(bench, 1, timeout_ms=500)
    bench.runtime.advance(COMMIT_WAIT_MS_MAX - 1)
    assert not ends.ready
    bench.runtime.advance(501)
    assert ends.value == {AT: 1}
    assert waiting.value is False
    release_disk(bench)
    assert bench.log.ends([AT]).value == {AT: 2}

"""Kill the broker between every two steps of a transaction's end: it is all there, or nothing.

A step is a callback, a call on another thread, or the news of its outcome.  The process is killed,
or the power is cut; then everything is opened again and looked at, through another death in the
middle of the recovery.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from tests.support.faults import FaultyFiles
from tests.support.transactions import T0, T1, U0, Killed, RememberingFiles, TransactionBench

from pentalog.broker.endings import RETRY_MS
from pentalog.broker.port import Committed
from pentalog.kernels import batch_header
from pentalog.log.files import Handle
from pentalog.model.batch import CONTROL, build_marker
from pentalog.model.errors import BrokerError, TransactionBusy
from pentalog.model.later import Later
from pentalog.model.types import Identity, Partition
from pentalog.runtime import Slices

STEPS_MAX = 200
PARTS: dict[str, tuple[tuple[Partition, ...], bool]] = {
    "one": ((T0,), False),
    "many": ((T0, T1, U0), False),
    "one with offsets": ((T0,), True),
    "many with offsets": ((T0, T1, U0), True),
    "offsets": ((), True),
}

pytestmark = pytest.mark.crash


@pytest.fixture(autouse=True)
def _journal_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pentalog.log.flusher._JOURNAL_PAYS_AFTER", 1)


def begin(bench: TransactionBench, parts: tuple[Partition, ...], offsets: bool) -> Identity:
    """A first transaction that commits, and a second that is about to end."""
    who = bench.identify("x", timeout_ms=60_000)
    for at in parts:
        bench.write(who, at, 0, b"first")
    if offsets:
        bench.stage("x", who, "g", U0, 1)
    who = bench.end("x", who, commit=True)
    for at in parts:
        bench.write(who, at, 0, b"second", b"half")
    if offsets:
        bench.stage("x", who, "g", U0, 2)
    return who


def state_of(bench: TransactionBench, parts: tuple[Partition, ...], offsets: bool) -> set[str]:
    """What a reader makes of the second transaction, in each place."""
    found = set()
    for at in parts:
        seen = bench.committed(at)
        assert seen[:1] == [b"first"]
        assert seen[1:] in ([], [b"second", b"half"])
        open_here = bench.store.get(at).producers.open_transaction_start is not None
        found.add("open" if open_here else "seen" if seen[1:] else "hidden")
    if offsets:
        offset = bench.offset_of("g", U0)
        assert offset in (1, 2)
        unstable = bench.offsets.unstable("g", U0)
        found.add("open" if unstable else "seen" if offset == 2 else "hidden")
    return found


def deaths(
    tmp_path: Path, live: Callable[[TransactionBench], None], *, power: bool
) -> Iterator[Path]:
    """The directory after a death at step 0, 1, 2 ... of `live`, until it comes to its end."""
    for number in range(STEPS_MAX):
        directory = tmp_path / str(number)
        bench = TransactionBench(directory)
        bench.runtime.step()
        bench.runtime.steps_left = 1 << 30
        try:
            live(bench)
            bench.runtime.steps_left = number
            bench.runtime.step()
            finished = True
        except Killed:
            finished = False
        bench.die(power=power)
        yield directory
        if finished:
            return
    raise AssertionError("it never ended")


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power cut"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("kind", PARTS)
def test_a_death_while_ending(tmp_path: Path, kind: str, commit: bool, power: bool) -> None:
    parts, offsets = PARTS[kind]
    asked: list[tuple[Identity, bool]] = []

    def live(bench: TransactionBench) -> None:
        who = begin(bench, parts, offsets)
        later = bench.transactions.end("x", who, commit=commit, bump=True)
        asked.append((who, False))
        later.then(lambda _: asked.__setitem__(-1, (who, True)))

    outcomes = set()
    for directory in deaths(tmp_path, live, power=power):
        who, answered = asked[-1]
        bench = TransactionBench(directory)
        bench.runtime.step()
        found = state_of(bench, parts, offsets)
        assert len(found) == 1, f"torn: {found}"
        if answered:
            assert found == {"seen" if commit else "hidden"}
        outcomes |= found
        # The producer asks again, as one does that got no answer, and goes on.
        after = bench.end("x", who, commit=commit)
        assert after.epoch == who.epoch + 1
        assert state_of(bench, parts, offsets) == {"seen" if commit else "hidden"}
        for at in parts:
            bench.write(after, at, 0, b"third")
        bench.end("x", after, commit=True) if parts else None
        for at in parts:
            assert bench.committed(at)[-1] == b"third"
        bench.die()
    ended = "seen" if commit else "hidden"
    # The only marker of a lone partition is written at once, and a killed process leaves it.
    assert outcomes == ({ended} if kind == "one" and not power else {"open", ended})


GROUP_PLACES = (U0, T0, T1, Partition("t", 2))


def stage_many(bench: TransactionBench) -> Identity:
    who = bench.identify("x", timeout_ms=60_000)
    offsets = {at: Committed(2) for at in GROUP_PLACES}
    staged = bench.transactions.stage("x", who, "g", offsets, enlists=True)
    bench.runtime.step()
    assert staged.value is None
    return who


def offsets_of(bench: TransactionBench) -> list[int | None]:
    return [bench.offset_of("g", at) for at in GROUP_PLACES]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_death_while_offsets_end_over_many_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    """What was confirmed is there before the next life serves its first client."""
    monkeypatch.setattr("pentalog.broker.offsets.Slices", partial(Slices, cut=lambda: True))
    answered: list[bool] = []

    def live(bench: TransactionBench) -> None:
        who = stage_many(bench)
        answered.append(False)
        ended = bench.transactions.end("x", who, commit=commit, bump=True)
        ended.then(lambda _: answered.__setitem__(-1, True))

    outcomes = set()
    for directory in deaths(tmp_path, live, power=False):
        bench = TransactionBench(directory)
        at_once = offsets_of(bench)
        bench.runtime.step()
        found = offsets_of(bench)
        assert found == at_once
        assert len(set(found)) == 1, f"torn: {found}"
        if answered[-1]:
            assert found == [2 if commit else None] * len(GROUP_PLACES)
        outcomes.update(found)
        bench.die()
    assert answered[-1]
    assert outcomes == ({None, 2} if commit else {None})


def test_a_start_writes_the_offsets_of_a_decided_transaction_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of hundreds of thousands of changes in one turn, each takes memory and time."""
    bench = TransactionBench(tmp_path)
    who = bench.identify("x", timeout_ms=60_000)
    staged = {Partition("t", index): Committed(2) for index in range(100)}
    bench.transactions.stage("x", who, "g", staged, enlists=True)
    bench.offsets.commit("g", {T1: Committed(3)})
    bench.runtime.step()
    bench.offsets._slices.close()
    bench.transactions.end("x", who, commit=True, bump=True)
    bench.runtime.step()
    bench.die()
    found = {at: 3 if at == T1 else 2 for at in staged}
    for life in range(2):
        bench = TransactionBench(tmp_path)
        assert bench.state.position - bench.state.durable < 10
        committed = bench.offsets.committed("g")
        assert {at: each.offset for at, each in committed.items()} == found, f"life {life}"
        bench.runtime.step()
        bench.die()


class TurnsThatStop(NamedTuple):
    """A runtime that has no later turns."""

    monotonic: Callable[[], float]

    def soon(self, run: Callable[[], None]) -> None: ...


@pytest.mark.parametrize("what", ["group", "offset", "topic"])
def test_what_is_forgotten_while_a_transaction_ends_stays_forgotten(
    tmp_path: Path, what: str
) -> None:
    """The process dies before the transaction's other offsets have become real."""
    forgotten: list[Later[None]] = []

    def forget(bench: TransactionBench) -> None:
        assert offsets_of(bench) == [2] + [None] * (len(GROUP_PLACES) - 1)
        if what == "topic":
            bench.offsets.forget_topic("u")
        else:
            bench.offsets.forget("g", None if what == "group" else GROUP_PLACES[:1])
        forgotten.append(bench.state.settle())

    def live(bench: TransactionBench) -> None:
        forgotten.clear()

        def cut() -> bool:
            bench.runtime.soon(partial(forget, bench))
            return True

        stopping = TurnsThatStop(bench.runtime.monotonic)
        bench.offsets._slices = Slices(cast("Any", stopping), cut=cut)
        bench.transactions.end("x", stage_many(bench), commit=True, bump=True)

    for directory in deaths(tmp_path, live, power=False):
        bench = TransactionBench(directory)
        bench.runtime.step()
        if forgotten and forgotten[0].ready:
            left = None if what == "group" else 2
            assert offsets_of(bench) == [None] + [left] * (len(GROUP_PLACES) - 1)
        bench.die()
    assert forgotten[0].ready


@pytest.mark.parametrize("kind", ["many", "many with offsets"])
def test_a_death_while_recovering_from_a_death(tmp_path: Path, kind: str) -> None:
    parts, offsets = PARTS[kind]

    def live(bench: TransactionBench) -> None:
        who = begin(bench, parts, offsets)
        bench.transactions.end("x", who, commit=True, bump=True)

    decided = 0
    for directory in deaths(tmp_path, live, power=False):
        bench = TransactionBench(directory)
        opened = bench.transactions.view("x").phase
        bench.die()
        if opened == "Ongoing":
            continue
        decided += 1
        for steps in range(STEPS_MAX):
            bench = TransactionBench(directory)
            bench.runtime.steps_left = steps
            try:
                bench.runtime.step()
                finished = True
            except Killed:
                finished = False
            bench.die(power=steps % 2 == 1)
            if finished:
                break
        bench = TransactionBench(directory)
        bench.runtime.step()
        assert state_of(bench, parts, offsets) == {"seen"}
        assert bench.transactions.view("x").phase == "CompleteCommit"
        bench.die()
    assert decided > 2


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power cut"])
def test_a_death_while_a_new_producer_takes_over(tmp_path: Path, power: bool) -> None:
    parts, offsets = PARTS["many with offsets"]
    given: list[Identity] = []

    def live(bench: TransactionBench) -> None:
        given.clear()
        given.append(begin(bench, parts, offsets))
        later = bench.transactions.identify("x", timeout_ms=1000)
        later.then(lambda done: given.append(done.value))

    for directory in deaths(tmp_path, live, power=power):
        bench = TransactionBench(directory)
        bench.runtime.step()
        assert len(state_of(bench, parts, offsets)) == 1
        new = bench.identify("x")
        assert all(new.epoch > old.epoch for old in given), "an epoch was given twice"
        assert state_of(bench, parts, offsets) == {"hidden"}
        with pytest.raises(BrokerError):
            bench.end("x", given[0], commit=True)
        bench.die()


def test_aborted_records_stay_hidden_after_a_power_cut(tmp_path: Path) -> None:
    """The list of aborted transactions is on the disk before anything relies on it."""
    bench = TransactionBench(tmp_path)
    who = bench.identify("x")
    for number in range(40):
        bench.write(who, T0, 0, b"%d" % number)
        who = bench.end("x", who, commit=number % 2 == 0)
        if number % 7 == 6:
            bench.runtime.advance(61_000)  # checkpoints and snapshots
    expected = [b"%d" % number for number in range(0, 40, 2)]
    assert bench.committed(T0) == expected
    bench.die(power=True)
    bench = TransactionBench(tmp_path)
    assert bench.committed(T0) == expected
    bench.die()


def test_an_abort_whose_marker_was_lost_leaves_no_trace(tmp_path: Path) -> None:
    """The index of aborted transactions may reach the disk before the marker it tells of."""
    bench = TransactionBench(tmp_path)
    who = bench.identify("x")
    bench.write(who, T0, 0, b"a")
    bench.write(who, T1, 0, b"b")
    bench.store.get(T0).sync_all()
    path = bench.store.get(T0).active.path(".txnindex")
    bench.runtime.held_lanes = {"journal", "sync", "state"}
    bench.log.append(T0, memoryview(build_marker(commit=False, timestamp_ms=1, **vars_of(who))))
    bench.remembering.synced[path] = path.stat().st_size
    bench.die(power=True)
    assert path.stat().st_size
    bench = TransactionBench(tmp_path)
    bench.end("x", who, commit=True)
    bench.die()
    bench = TransactionBench(tmp_path)
    assert bench.committed(T0) == [b"a"]
    assert bench.committed(T1) == [b"b"]
    bench.die()


def vars_of(who: Identity) -> dict[str, int]:
    return {"producer_id": who.producer_id, "producer_epoch": who.epoch}


def test_an_index_of_aborted_transactions_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for restart in ("crash", "checkpoint", "stop"):
        bench = TransactionBench(tmp_path / restart)
        who = bench.identify("x")
        write = bench.files.write

        def failing(
            file: Handle,
            data: bytes | bytearray | memoryview,
            position: int,
            write: Callable[..., None] = write,
        ) -> None:
            if file.path.suffix == ".txnindex":
                raise OSError(28, "no space", str(file.path))
            write(file, data, position)

        with monkeypatch.context() as broken:
            broken.setattr(bench.files, "write", failing)
            for number in range(6):
                bench.write(who, T0, 0, b"%d" % number)
                who = bench.end("x", who, commit=number % 2 == 0)
        assert bench.committed(T0) == [b"0", b"2", b"4"]
        if restart == "checkpoint":
            bench.runtime.advance(6000)
        if restart == "stop":
            bench.stop()
        else:
            bench.die()
        bench = TransactionBench(tmp_path / restart)
        assert bench.committed(T0) == [b"0", b"2", b"4"]
        bench.die()


@pytest.mark.parametrize("kind", ["EIO", "ENOSPC", "short"])
def test_a_disk_that_fails_once_tears_nothing(tmp_path: Path, kind: str) -> None:
    """Call n of those an end makes of the disk fails, for n = 1, 2, 3 ... until none does."""
    parts, offsets = PARTS["many with offsets"]
    refused = 0
    for number in range(1, STEPS_MAX):
        files = FaultyFiles(kind=kind)
        bench = TransactionBench(tmp_path / str(number), files=files)
        who = begin(bench, parts, offsets)
        files.calls, files.fail_at = 0, number
        try:
            bench.end("x", who, commit=True)
            answered = True
        except BrokerError:
            answered = False
            refused += 1
        bench.die()
        again = TransactionBench(tmp_path / str(number))
        again.runtime.step()
        found = state_of(again, parts, offsets)
        assert found == {"seen"} or (not answered and found == {"open"})
        again.die()
        if not files.failed:
            break
    assert refused


class FullFiles(RememberingFiles):
    """A disk that refuses the next so many markers."""

    refusals = 0

    def write(self, file: Handle, data: bytes | bytearray | memoryview, position: int) -> None:
        marker = file.path.suffix == ".log" and batch_header(data, 0).attributes & CONTROL
        if marker and self.refusals:
            self.refusals -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file.path))
        super().write(file, data, position)


def test_a_decided_commit_is_not_aborted_where_its_marker_is_refused(tmp_path: Path) -> None:
    """At a start, one marker meets a full disk and the next write does not."""
    files = FullFiles()
    bench = TransactionBench(tmp_path, files=files)
    who = begin(bench, (T0, U0), offsets=False)
    files.refusals = 1_000
    with pytest.raises(TransactionBusy):
        bench.end("x", who, commit=True)
    bench.die()
    files = FullFiles()
    files.refusals = 1
    again = TransactionBench(tmp_path, files=files)
    assert not files.refusals
    again.runtime.advance(RETRY_MS)
    assert state_of(again, (T0, U0), offsets=False) == {"seen"}
    assert again.transactions.view("x").phase == "CompleteCommit"
    again.die()


def aborted_index(bench: TransactionBench) -> Path:
    """Abort a transaction; gives the index that says so."""
    who = begin(bench, (T0,), offsets=False)
    bench.end("x", who, commit=False)
    return bench.store.get(T0).active.path(".txnindex")


def test_no_snapshot_is_synced_ahead_of_an_index_that_is_being_synced(tmp_path: Path) -> None:
    """A start with that snapshot would not meet the marker, and show what was aborted."""
    bench = TransactionBench(tmp_path)
    index = aborted_index(bench)
    partition = bench.store.get(T0)
    bench.runtime.held_lanes.add("sync")
    partition.snapshots.write()
    assert bench.remembering.synced.get(index) is None
    partition.snapshots.keep(partition.end_offset)
    assert partition.snapshots.synced_offset == partition.end_offset
    assert bench.remembering.synced[index] == index.stat().st_size > 0
    bench.die()


def test_what_is_written_during_a_sync_of_the_index_is_synced_as_well(tmp_path: Path) -> None:
    bench = TransactionBench(tmp_path)
    index = aborted_index(bench)
    partition = bench.store.get(T0)
    bench.runtime.held_lanes.add("sync")
    partition.snapshots.write()
    bench.runtime.held_lanes.clear()
    size = index.stat().st_size
    assert aborted_index(bench) == index
    bench.runtime.step()
    partition.snapshots.write()
    bench.runtime.step()
    assert bench.remembering.synced[index] == index.stat().st_size > size
    assert not partition.aborts_unsynced
    bench.die()

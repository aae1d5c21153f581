"""A compaction dies, or fails, at every single call that changes the disk: nothing is lost."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.compactions import newest
from tests.support.faults import FaultyFiles
from tests.support.logs import AT, LogBench

from pentalog.log import swap
from pentalog.log.compaction import Compaction, plan
from pentalog.log.files import Handle, RealFiles
from pentalog.log.segment import segment_path
from pentalog.model.errors import StorageFailed

SEED = int(os.environ.get("PENTALOG_SEED", "20261115"))
RECORDS = 120
TORTURE = "PENTALOG_TORTURE" in os.environ
SETTINGS: dict[str, Any] = {
    "cleanup_compact": True,
    "cleanup_delete": False,
    "segment_bytes": 2048,
    "cleanable_dirty_ratio_min": 0.0,
    "delete_retention_ms": 0,
}


class Killed(BaseException):
    """Not an Exception: nothing may catch it, as nothing catches a kill."""


class MortalFiles(RealFiles):
    """The process dies at the n-th call that changes the disk; 0: it lives.

    Syncs do nothing else: here no power is lost, or only for show.
    """

    def __init__(self, die_at: int = 0) -> None:
        self.die_at = die_at
        self.calls = 0

    def _live(self) -> None:
        self.calls += 1
        if self.die_at and self.calls >= self.die_at:
            raise Killed

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> Handle:
        if create:
            self._live()
        return super().open(path, create=create, writable=writable)

    def write(self, file: Handle, data: bytes | bytearray | memoryview, position: int) -> None:
        self._live()
        super().write(file, data, position)

    def sync(self, file: Handle) -> None:
        self._live()

    def sync_directory(self, path: Path) -> None:
        self._live()

    def truncate(self, file: Handle, size: int) -> None:
        self._live()
        super().truncate(file, size)

    def rename(self, old: Path, new: Path) -> None:
        self._live()
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        self._live()
        super().remove(path)


class VolatileFiles(MortalFiles):
    """After a power failure: of what was not synced, any part may be on the disk.

    Of the changes of names since the last sync of their directory any subset is; files that were
    made and never synced are cut anywhere.
    """

    def __init__(self, watched: Path, vault: Path, die_at: int) -> None:
        super().__init__(die_at)
        self._watched = watched
        self._vault = vault
        vault.mkdir()
        self._on_disk: dict[str, int] = {}
        self._changes: list[tuple[str, str, int]] = []
        self._unsynced: set[int] = set()
        for path in watched.iterdir():
            self._on_disk[path.name] = self._keep(path)

    def _keep(self, path: Path) -> int:
        """Hold on to a file whatever happens to its names."""
        number = path.stat().st_ino
        if not (self._vault / str(number)).exists():
            os.link(path, self._vault / str(number))
        return number

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> Handle:
        fresh = create and path.parent == self._watched and not path.exists()
        file = super().open(path, create=create, writable=writable)
        if fresh:
            number = self._keep(path)
            self._changes.append(("", path.name, number))
            self._unsynced.add(number)
        return file

    def sync(self, file: Handle) -> None:
        super().sync(file)
        self._unsynced.discard(os.fstat(file.fd).st_ino)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        if path == self._watched:
            for change in self._changes:
                self._apply(change)
            self._changes.clear()

    def rename(self, old: Path, new: Path) -> None:
        number = self._keep(old) if old.parent == self._watched else 0
        super().rename(old, new)
        if number:
            self._changes.append((old.name, new.name, number))

    def remove(self, path: Path) -> None:
        number = self._keep(path) if path.parent == self._watched and path.exists() else 0
        super().remove(path)
        if number:
            self._changes.append((path.name, "", number))

    def _apply(self, change: tuple[str, str, int]) -> None:
        old, new, number = change
        if self._on_disk.get(old) == number:
            del self._on_disk[old]
        if new:
            self._on_disk[new] = number

    def lose_power(self, chance: random.Random) -> None:
        for change in self._changes:
            if chance.random() < 0.5:
                self._apply(change)
        for number in self._unsynced:
            path = self._vault / str(number)
            os.truncate(path, chance.randint(0, path.stat().st_size))
        for path in self._watched.iterdir():
            path.unlink()
        for name, number in self._on_disk.items():
            os.link(self._vault / str(number), self._watched / name)


def history() -> list[tuple[bytes, bytes | None]]:
    chance = random.Random(SEED)
    return [
        (
            b"key-%d" % chance.randrange(30),
            None if chance.random() < 0.1 else b"%d." % number * chance.randint(5, 12),
        )
        for number in range(RECORDS)
    ]


def state_of(bench: LogBench) -> dict[bytes, bytes]:
    """What is left for a consumer: the newest values; a tombstone and nothing are the same."""
    state: dict[bytes, bytes] = {}
    for _, record in bench.read(bench.store.get(AT).start_offset):
        assert record.key is not None
        state.pop(record.key, None)
        if record.value is not None:
            state[record.key] = record.value
    return state


EXPECTED: dict[bytes, bytes] = {}
for _key, _value in history():
    EXPECTED.pop(_key, None)
    if _value is not None:
        EXPECTED[_key] = _value


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition of which the first half has been compacted before."""
    directory = tmp_path_factory.mktemp("written")
    bench = LogBench(directory)
    partition = bench.partition(**SETTINGS)
    records = history()
    for number, (key, value) in enumerate(records):
        producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": number}
        bench.append(value, keys=[key], **producer)
        if number == RECORDS // 2:
            partition.roll()
            bench.runtime.advance(1000)
            assert compact(bench)
    partition.roll()
    bench.runtime.advance(1000)
    assert state_of(bench) == EXPECTED
    bench.store.close()
    return directory


def compact(bench: LogBench) -> bool:
    found = plan(bench.store.get(AT), bench.store.cleaned_offsets.get(AT), bench.runtime.now_ms())
    if found is None:
        return False
    Compaction(bench.store, bench.runtime, found, lambda: None).start()
    bench.runtime.step()
    return True


def check(directory: Path) -> None:
    """Open after the accident: everything is there, and can be compacted again and again."""
    bench = LogBench(directory, files=MortalFiles())
    partition = bench.partition(**SETTINGS)
    assert bench.metrics.damaged_batches == 0
    assert state_of(bench) == EXPECTED
    assert partition.end_offset == RECORDS
    names = [path.name for path in partition.directory.iterdir()]
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted", ".tmp"))]
    again = bench.append(
        b"again", keys=[b"x"], producer_id=7, producer_epoch=0, base_sequence=RECORDS - 1
    )
    assert (again.duplicate, again.base_offset) == (True, RECORDS - 1)
    bench.append(b"new", keys=[b"new"])
    partition.roll()
    bench.runtime.advance(1000)
    compact(bench)
    assert state_of(bench) == {**EXPECTED, b"new": b"new"}
    assert bench.store.cleaned_offsets[AT] == RECORDS + 1
    bench.crash()
    bench = LogBench(directory, files=MortalFiles())
    assert state_of(bench) == {**EXPECTED, b"new": b"new"}
    assert bench.metrics.damaged_batches == 0
    bench.crash()


def calls_of_a_compaction(written: Path, directory: Path) -> tuple[int, int]:
    """Numbers of the first and the last call that changes the disk."""
    shutil.copytree(written, directory)
    files = MortalFiles()
    bench = LogBench(directory, files=files)
    bench.partition(**SETTINGS)
    first = files.calls + 1
    assert compact(bench)
    last = files.calls
    bench.crash()
    assert last - first > 40, "several segments are to be swapped"
    return first, last


def test_killed_at_every_step(written: Path, tmp_path: Path) -> None:
    first, last = calls_of_a_compaction(written, tmp_path / "whole")
    check(tmp_path / "whole")
    for die_at in range(first, last + 1):
        directory = tmp_path / str(die_at)
        shutil.copytree(written, directory)
        bench = LogBench(directory, files=MortalFiles(die_at))
        bench.partition(**SETTINGS)
        with pytest.raises(Killed):
            compact(bench)
        bench.crash()
        check(directory)
        shutil.rmtree(directory)


def test_killed_again_while_the_next_start_tidies_up(written: Path, tmp_path: Path) -> None:
    first, last = calls_of_a_compaction(written, tmp_path / "whole")
    scratch = tmp_path / "scratch"
    survived = 0
    for die_at in range(first, last + 1, 1 if TORTURE else 5):
        shutil.copytree(written, tmp_path / "dead")
        bench = LogBench(tmp_path / "dead", files=MortalFiles(die_at))
        bench.partition(**SETTINGS)
        with pytest.raises(Killed):
            compact(bench)
        bench.crash()
        for die_again_at in range(1, 60, 1 if TORTURE else 3):
            shutil.copytree(tmp_path / "dead", scratch)
            files = MortalFiles(die_again_at)
            bench = LogBench(scratch, files=files, open_now=False)
            try:
                bench.store.open()
            except Killed:
                bench.store._lock = None
            else:
                survived += 1
                bench.crash()
            check(scratch)
            shutil.rmtree(scratch)
            if files.calls < die_again_at:
                break
        shutil.rmtree(tmp_path / "dead")
    assert survived, "the last kills came after everything was tidy"


def test_power_lost_at_every_step(written: Path, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    first, last = calls_of_a_compaction(written, tmp_path / "whole")
    for die_at in range(first, last + 1):
        for attempt in range(10 if TORTURE else 2):
            directory = tmp_path / "copy"
            shutil.copytree(written, directory)
            files = VolatileFiles(directory / "events-0", tmp_path / "vault", die_at)
            try:
                bench = LogBench(directory, files=files)
                bench.partition(**SETTINGS)
                with pytest.raises(Killed):
                    compact(bench)
                bench.crash()
                files.lose_power(chance)
                check(directory)
            except BaseException:
                print(f"seed {SEED}, call {die_at}, attempt {attempt}")
                raise
            shutil.rmtree(directory)
            shutil.rmtree(tmp_path / "vault")


def test_the_disk_fails_once_at_every_step(written: Path, tmp_path: Path) -> None:
    """The broker goes on: what can be read is right, and the next start finds everything."""
    refused = 0
    for fail_at in range(1, 400):
        directory = tmp_path / "copy"
        shutil.copytree(written, directory)
        files = FaultyFiles()
        bench = LogBench(directory, files=files)
        partition = bench.partition(**SETTINGS)
        files.calls, files.fail_at = 0, fail_at
        assert compact(bench)
        try:
            assert state_of(bench) == EXPECTED
        except StorageFailed:
            refused += 1
            assert partition.failed
        bench.crash()
        check(directory)
        shutil.rmtree(directory)
        if not files.failed:
            break
    assert fail_at > 40
    assert refused < fail_at / 2


def swap_waiting(written: Path, directory: Path) -> list[int]:
    """Leave a committed swap on the disk; returns the bases of the new segments."""
    shutil.copytree(written, directory)
    bench = LogBench(directory)
    partition = bench.partition(**SETTINGS)
    found = plan(partition, bench.store.cleaned_offsets.get(AT), bench.runtime.now_ms())
    assert found is not None
    compaction = Compaction(bench.store, bench.runtime, found, lambda: None)
    compaction._committed = lambda *_: None  # type: ignore[method-assign]
    compaction.start()
    bench.runtime.step()
    bench.crash()
    swaps = sorted((directory / "events-0").glob("*.log.swap"))
    assert swaps
    return [int(path.name[:20]) for path in swaps]


@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "foreign"])
def test_the_list_of_sources_may_be_lost(written: Path, tmp_path: Path, damage: str) -> None:
    """As it is in directories that Apache Kafka left: then the batches themselves tell."""
    directory = tmp_path / "copy"
    for base in swap_waiting(written, directory):
        path = segment_path(directory / "events-0", base, ".covers.swap")
        if damage == "missing":
            path.unlink()
        elif damage == "foreign":
            path.write_text("\N{SNOWMAN} 1 2 end\n")
        else:
            text = path.read_text()
            path.write_text("" if damage == "empty" else text[: len(text) - 5])
    check(directory)


def test_a_list_that_fits_nothing_removes_nothing(written: Path, tmp_path: Path) -> None:
    """Left by a partition that was deleted while its compaction was being committed."""
    directory = tmp_path / "copy"
    shutil.copytree(written, directory)
    bases = sorted(int(path.stem) for path in (directory / "events-0").glob("*.log"))
    path = segment_path(directory / "events-0", bases[0], ".covers.swap")
    path.write_text(f"12345 {' '.join(map(str, bases))} end\n")
    check(directory)


def test_putting_in_place_can_be_repeated(written: Path, tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    bases = swap_waiting(written, directory)
    files = RealFiles()
    for _ in range(2):
        names = swap.tidy(files, directory / "events-0")
        assert not [name for name in names if name.endswith(".swap")]
    assert {f"{base:020d}.log" for base in bases} <= set(names)
    check(directory)


@pytest.mark.parametrize("content", [None, b"", b"no checkpoint\n"])
def test_journal_entries_of_compacted_segments_are_not_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    """Even if the recovery points are lost or damaged: batches have other positions now."""
    monkeypatch.setattr("pentalog.log.flusher._JOURNAL_PAYS_AFTER", 1)
    bench = LogBench(tmp_path)
    bench.partition(**SETTINGS)
    expected: dict[bytes, bytes] = {}
    for number in range(200):
        key = b"key-%d" % (number * 7919 % 53)
        expected[key] = b"value-%d" % number * (1 + number % 9)
        bench.settled(expected[key], keys=[key])
    bench.partition().roll()
    bench.runtime.advance(1_000)
    assert compact(bench)
    assert bench.store.journal.used_bytes
    bench.crash()
    checkpoint = tmp_path / "recovery-point-offset-checkpoint"
    checkpoint.unlink()
    if content is not None:
        checkpoint.write_bytes(content)
    assert newest(LogBench(tmp_path)) == expected

"""The simulated disk keeps what was synced, and may lose everything else in every way."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from tests.simulation.disk import PAGE, SECTOR, Disk, Inode
from tests.simulation.files import Crash, Faults, SimulatedFiles

ROUNDS = 300


class Countdown:
    """Crashes at the n-th call, and at all later ones."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def __call__(self, operation: str, path: Path) -> None:
        self._left -= 1
        if self._left <= 0:
            raise Crash


def make_files(disk: Disk | None = None) -> SimulatedFiles:
    return SimulatedFiles(disk or Disk(), Random(1), lambda operation, path: None, lambda: 0.0)


def test_synced_data_survives_and_unsynced_data_may_not() -> None:
    seen = set()
    for seed in range(ROUNDS):
        inode = Inode()
        inode.write(b"a" * 100, 0)
        inode.sync()
        inode.write(b"b" * 100, 100)
        inode.cut_power(Random(seed))
        assert inode.cache[:100] == b"a" * 100
        seen.add(bytes(inode.cache[100:]))
    assert b"" in seen, "the size was never lost"
    assert bytes(100) in seen, "a file longer than its data"
    assert b"b" * 100 in seen, "everything survived"


def test_pages_and_sectors_survive_on_their_own() -> None:
    holes = torn = 0
    for seed in range(ROUNDS):
        inode = Inode()
        inode.write(b"x" * (4 * PAGE), 0)
        inode.cut_power(Random(seed))
        sectors = [
            bytes(inode.cache[at : at + SECTOR]) == b"x" * SECTOR
            for at in range(0, len(inode.cache), SECTOR)
        ]
        holes += False in sectors and True in sectors[sectors.index(False) :]
        torn += any(
            len(set(sectors[page : page + PAGE // SECTOR])) == 2
            for page in range(0, len(sectors), PAGE // SECTOR)
        )
    assert holes, "no hole before data that survived"
    assert torn, "no page was torn"


def test_old_content_returns_where_it_was_overwritten() -> None:
    seen = set()
    for seed in range(ROUNDS):
        inode = Inode()
        inode.write(b"1" * SECTOR, 0)
        inode.sync()
        inode.write(b"2" * SECTOR, 0)
        inode.write(b"3" * SECTOR, 0)
        inode.cut_power(Random(seed))
        seen.add(bytes(inode.cache[:1]))
    assert seen == {b"1", b"2", b"3"}


def test_old_content_does_not_return_behind_a_truncation_that_survived() -> None:
    for seed in range(ROUNDS):
        inode = Inode()
        inode.write(b"old" * 400, 0)
        inode.sync()
        inode.truncate(0)
        inode.write(b"n", 0)
        inode.cut_power(Random(seed))
        content = bytes(inode.cache)
        assert content in (b"old" * 400, b"", b"n", b"\0")


def test_a_write_with_dsync_makes_only_its_own_range_durable() -> None:
    lost = False
    for seed in range(ROUNDS):
        inode = Inode()
        inode.write(bytes(4 * PAGE), 0)
        inode.sync()
        inode.write(b"u" * SECTOR, 2 * PAGE)
        inode.write(b"s" * SECTOR, 0)
        inode.sync_range(0, SECTOR)
        inode.cut_power(Random(seed))
        assert inode.cache[:SECTOR] == b"s" * SECTOR
        lost |= inode.cache[2 * PAGE : 2 * PAGE + 1] == b"\0"
    assert lost


def test_after_a_failed_sync_the_next_one_proves_nothing() -> None:
    lost = False
    for seed in range(ROUNDS):
        inode = Inode()
        inode.write(b"d" * 100, 0)
        inode.fail_sync(Random(seed))
        inode.sync()
        assert inode.cache == b"d" * 100
        inode.cut_power(Random(seed))
        lost |= inode.cache != b"d" * 100
    assert lost


def test_names_survive_as_a_prefix_of_their_changes() -> None:
    seen = set()
    for seed in range(ROUNDS):
        disk = Disk()
        files = make_files(disk)
        files.open(Path("/a"), create=True)
        files.sync_directory(Path("/"))
        files.open(Path("/b"), create=True)
        files.rename(Path("/a"), Path("/c"))
        files.remove(Path("/b"))
        disk.cut_power(Random(seed))
        seen.add(tuple(sorted(disk.root.entries)))
    assert seen == {("a",), ("a", "b"), ("b", "c"), ("c",)}


def test_a_synced_file_without_its_name_is_lost() -> None:
    lost = False
    for seed in range(ROUNDS):
        disk = Disk()
        files = make_files(disk)
        file = files.open(Path("/a"), create=True)
        files.write(file, b"data", 0)
        files.sync(file)
        disk.cut_power(Random(seed))
        lost |= not files.exists(Path("/a"))
        assert lost or disk.root.entries
    assert lost


def test_a_removed_file_keeps_its_content_for_who_has_it_open() -> None:
    files = make_files()
    file = files.open(Path("/a"), create=True)
    files.write(file, b"data", 0)
    files.remove(Path("/a"))
    assert files.read(file, 10, 0) == b"data"
    assert not files.exists(Path("/a"))


def test_a_full_disk_lets_blocks_be_overwritten_that_exist() -> None:
    files = make_files()
    file = files.open(Path("/a"), create=True)
    files.write(file, b"x" * PAGE, 0)
    files.disk.space_pages = 1
    files.write(file, b"y" * PAGE, 0)
    with pytest.raises(OSError) as caught:
        files.write(file, b"z" * (3 * PAGE), PAGE)
    assert caught.value.errno == errno.ENOSPC
    assert files.size(file) == 2 * PAGE, "the part that had room is written"
    files.disk.space_pages = None
    files.write(file, b"z" * (3 * PAGE), PAGE)
    assert files.size(file) == 4 * PAGE


def test_errors_are_injected_by_kind() -> None:
    files = make_files()
    file = files.open(Path("/a"), create=True)
    files.write(file, b"data", 0)
    for kind, call in (
        (Faults.READ, lambda: files.read(file, 4, 0)),
        (Faults.WRITE, lambda: files.write(file, b"more", 4)),
        (Faults.SYNC, lambda: files.sync(file)),
        (Faults.SYNC, lambda: files.sync_directory(Path("/"))),
    ):
        files.faults.errors = {kind: 1.0}
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EIO
    assert files.faults.sync_failed


def test_a_file_is_replaced_wholly_or_not_at_all_at_every_crash_point() -> None:
    points = 0
    for crash_at in range(1, 40):
        for seed in range(20):
            disk = Disk()
            make_files(disk).replace_text(Path("/t"), "old")
            files = SimulatedFiles(disk, Random(seed), Countdown(crash_at), lambda: 0.0)
            try:
                files.replace_text(Path("/t"), "the new one")
                done = True
            except Crash:
                points += 1
                done = False
            disk.cut_power(Random(seed))
            after = make_files(disk)
            found = after.read(after.open(Path("/t")), 100, 0)
            assert found == b"the new one" if done else found in (b"old", b"the new one")
    assert points > 100

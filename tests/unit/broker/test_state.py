"""The state file: group commit, waiting, failures, versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from step_runtime import StepRuntime

from pentalog.broker import state as state_module
from pentalog.broker.state import FILE_NAME, MIGRATIONS, State
from pentalog.model.errors import Overloaded, StorageFailed, StorageFull

Open = Callable[[], State]
PUT = "INSERT OR REPLACE INTO meta VALUES (?, ?)"


def read(path: Path, name: str) -> str | None:
    database = sqlite3.connect(path)
    try:
        row = database.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    finally:
        database.close()
    return None if row is None else row[0]


def test_the_cluster_id_is_made_once(open_state: Open) -> None:
    first = open_state().cluster_id
    assert len(first) == 22
    assert open_state().cluster_id == first


def test_two_directories_have_different_cluster_ids(tmp_path: Path, runtime: StepRuntime) -> None:
    states = [State(tmp_path / name, runtime) for name in ("a", "b")]
    for state in states:
        state.open()
    assert states[0].cluster_id != states[1].cluster_id
    for state in states:
        state.close()
    runtime.run()


def test_settled_is_on_the_disk(open_state: Open, runtime: StepRuntime) -> None:
    state = open_state()
    state.write(PUT, "a", "1")
    settled = state.settle()
    assert not settled.ready
    assert read(state.path, "a") is None
    runtime.run()
    assert settled.ready
    assert settled.value is None
    assert read(state.path, "a") == "1"


@pytest.mark.parametrize(("synced", "level"), [(True, 2), (False, 1)])
def test_the_page_cache_can_be_declared_good_enough(
    tmp_path: Path, runtime: StepRuntime, synced: bool, level: int
) -> None:
    state = State(tmp_path / FILE_NAME, runtime, synced=synced)
    state.open()
    assert state.rows("PRAGMA synchronous") == [(level,)]
    state.close()
    runtime.run()


def test_nothing_to_wait_for_is_ready_at_once(open_state: Open, runtime: StepRuntime) -> None:
    state = open_state()
    assert state.settle().ready
    state.write(PUT, "a", "1")
    runtime.run()
    assert state.settle().ready


def test_changes_during_a_commit_go_together_into_the_next(
    open_state: Open, runtime: StepRuntime
) -> None:
    state = open_state()
    commits: list[str] = []
    assert state._database is not None
    state._database.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    runtime.lanes_blocked = True
    state.write(PUT, "a", "1")
    state.write(PUT, "a", "2")
    runtime.run()
    during = [state.settle()]
    for number in range(100):
        state.write(PUT, f"b{number}", "1")
        during.append(state.settle())
    runtime.run()
    assert not any(later.ready for later in during)
    runtime.lanes_blocked = False
    runtime.run()
    assert all(later.ready for later in during)
    assert len(commits) == 2


def test_the_waiter_of_a_commit_underway_does_not_wait_for_the_next(
    open_state: Open, runtime: StepRuntime
) -> None:
    state = open_state()
    runtime.lanes_blocked = True
    state.write(PUT, "a", "1")
    runtime.run()
    first = state.settle()
    ready_when_second_came = []
    first.then(lambda _: ready_when_second_came.append(second.ready))
    state.write(PUT, "b", "1")
    second = state.settle()
    runtime.lanes_blocked = False
    runtime.run()
    assert ready_when_second_came == [False]
    assert second.ready


def test_uncommitted_changes_are_gone_after_a_crash(open_state: Open, runtime: StepRuntime) -> None:
    runtime.lanes_blocked = True
    open_state().write(PUT, "a", "1")
    runtime.run()
    assert open_state().rows("SELECT value FROM meta WHERE name = 'a'") == []


def test_close_commits_what_is_queued(open_state: Open, runtime: StepRuntime) -> None:
    state = open_state()
    state.write(PUT, "a", "1")
    closed = state.close()
    runtime.run()
    assert closed.ready
    assert read(state.path, "a") == "1"


def fill_disk(state: State) -> None:
    assert state._database is not None
    pages = state._database.execute("PRAGMA page_count").fetchone()[0]
    state._database.execute(f"PRAGMA max_page_count = {pages}")


def free_disk(state: State) -> None:
    assert state._database is not None
    state._database.execute("PRAGMA max_page_count = 1000000")


def test_a_full_disk_refuses_all_who_wait_and_heals(open_state: Open, runtime: StepRuntime) -> None:
    state = open_state()
    fill_disk(state)
    large = "x" * 100_000
    state.write(PUT, "large", large)
    state.write(PUT, "small", "1")
    settled = state.settle()
    runtime.run()
    with pytest.raises(StorageFull, match="no space left"):
        _ = settled.value
    with pytest.raises(StorageFull):
        state.check()
    with pytest.raises(StorageFull):
        _ = state.settle().value
    assert read(state.path, "small") is None

    runtime.advance(state_module.RETRY_MS)
    with pytest.raises(StorageFull):
        state.check()

    free_disk(state)
    runtime.advance(state_module.RETRY_MS)
    state.check()
    assert state.settle().ready
    assert read(state.path, "large") == large
    assert read(state.path, "small") == "1"


def test_what_was_queued_behind_a_failed_commit_comes_after_it(
    open_state: Open, runtime: StepRuntime
) -> None:
    state = open_state()
    fill_disk(state)
    runtime.lanes_blocked = True
    state.write(PUT, "a", "x" * 100_000)
    runtime.run()
    state.write(PUT, "a", "second")
    behind = state.settle()
    runtime.lanes_blocked = False
    runtime.run()
    with pytest.raises(StorageFull):
        _ = behind.value
    free_disk(state)
    runtime.advance(state_module.RETRY_MS)
    assert read(state.path, "a") == "second"


def test_closing_while_the_disk_is_full_says_so(open_state: Open, runtime: StepRuntime) -> None:
    state = open_state()
    fill_disk(state)
    state.write(PUT, "a", "x" * 100_000)
    closed = state.close()
    runtime.run()
    with pytest.raises(StorageFull):
        _ = closed.value


def test_too_many_changes_are_refused(
    open_state: Open, runtime: StepRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "CHANGES_MAX", 10)
    state = open_state()
    for number in range(10):
        state.check()
        state.write(PUT, str(number), "1")
    with pytest.raises(Overloaded):
        state.check()
    runtime.run()
    state.check()


def test_a_newer_version_is_refused(tmp_path: Path, runtime: StepRuntime) -> None:
    path = tmp_path / FILE_NAME
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    database.close()
    with pytest.raises(StorageFailed, match="newer pentalog"):
        State(path, runtime).open()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path, runtime: StepRuntime) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b"this is not a database, and long enough to be seen as none" * 100)
    with pytest.raises(StorageFailed, match="cannot use"):
        State(path, runtime).open()


def test_migrations_run_once_and_in_order(
    tmp_path: Path, runtime: StepRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    def second(database: sqlite3.Connection) -> None:
        ran.append(2)
        database.execute("CREATE TABLE added (name TEXT)")

    def open_and_close() -> None:
        state = State(tmp_path / FILE_NAME, runtime)
        state.open()
        state.close()
        runtime.run()

    open_and_close()
    monkeypatch.setattr(state_module, "MIGRATIONS", (*MIGRATIONS, second))
    open_and_close()
    open_and_close()
    assert ran == [2]


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, runtime: StepRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(database: sqlite3.Connection) -> None:
        database.execute("CREATE TABLE added (name TEXT)")
        database.execute("CREATE TABLE added (name TEXT)")

    monkeypatch.setattr(state_module, "MIGRATIONS", (*MIGRATIONS, broken))
    path = tmp_path / FILE_NAME
    with pytest.raises(StorageFailed):
        State(path, runtime).open()
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
    assert not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'added'").fetchall()
    database.close()


@pytest.fixture
def near_state(tmp_path: Path, runtime: StepRuntime) -> Iterator[State]:
    state = State(tmp_path / FILE_NAME, runtime, synced=False)
    state.open()
    yield state
    runtime.lanes_blocked = False
    state.close()
    runtime.run()


def test_without_syncs_small_commits_need_no_lane(near_state: State, runtime: StepRuntime) -> None:
    runtime.lanes_blocked = True
    near_state.write(PUT, "a", "1")
    settled = near_state.settle()
    assert not settled.ready
    assert read(near_state.path, "a") is None, "changes of one turn are committed together"
    runtime.run()
    assert settled.ready
    assert read(near_state.path, "a") == "1"


def test_without_syncs_a_large_commit_takes_the_lane_and_keeps_the_order(
    near_state: State, runtime: StepRuntime
) -> None:
    runtime.lanes_blocked = True
    for number in range(state_module.NEAR_CHANGES_MAX + 1):
        near_state.write(PUT, "a", str(number))
    large = near_state.settle()
    runtime.run()
    near_state.write(PUT, "a", "last")
    small = near_state.settle()
    runtime.run()
    assert not large.ready
    assert not small.ready
    runtime.lanes_blocked = False
    runtime.run()
    assert small.ready
    assert read(near_state.path, "a") == "last"


def test_without_syncs_the_files_own_log_stays_small(
    near_state: State, runtime: StepRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "NEAR_CHANGES_ALL", 50)
    log = near_state.path.with_name(FILE_NAME + "-wal")
    near_state._near_left = 50
    sizes = []
    for number in range(500):
        near_state.write(PUT, "a", str(number))
        runtime.run()
        sizes.append(log.stat().st_size)
    assert sizes[-1] == sizes[100], "it is written over from its beginning"
    assert read(near_state.path, "a") == "499"


def test_without_syncs_another_process_is_waited_for_by_the_lane_only(
    near_state: State, runtime: StepRuntime
) -> None:
    other = sqlite3.connect(near_state.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    runtime.lanes_blocked = True
    near_state.write(PUT, "a", "1")
    settled = near_state.settle()
    runtime.run()
    assert not settled.ready
    near_state.check()
    other.execute("COMMIT")
    other.close()
    runtime.lanes_blocked = False
    runtime.run()
    assert settled.ready
    assert read(near_state.path, "a") == "1"


def test_without_syncs_a_full_disk_refuses_and_heals(
    near_state: State, runtime: StepRuntime
) -> None:
    assert near_state._near is not None
    pages = near_state._near.execute("PRAGMA page_count").fetchone()[0]
    near_state._near.execute(f"PRAGMA max_page_count = {pages}")
    near_state.write(PUT, "a", "x" * 100_000)
    settled = near_state.settle()
    runtime.run()
    with pytest.raises(StorageFull, match="no space left"):
        _ = settled.value
    with pytest.raises(StorageFull):
        near_state.check()
    near_state._near.execute("PRAGMA max_page_count = 1000000")
    runtime.advance(state_module.RETRY_MS)
    near_state.check()
    assert near_state.settle().ready
    assert read(near_state.path, "a") == "x" * 100_000


def test_without_syncs_changes_that_stand_alone_are_committed_at_once(
    near_state: State, runtime: StepRuntime
) -> None:
    runtime.lanes_blocked = True
    assert near_state.put(PUT, [("a", "1"), ("b", "1")]).ready
    assert read(near_state.path, "b") == "1"
    near_state.write(PUT, "c", "1")
    behind = near_state.put(PUT, [("a", "2")])
    assert not behind.ready, "what is queued before it comes first"
    assert read(near_state.path, "a") == "1"
    runtime.run()
    assert behind.ready
    assert read(near_state.path, "a") == "2"


def test_with_syncs_changes_that_stand_alone_wait_for_the_lane(
    open_state: Open, runtime: StepRuntime
) -> None:
    state = open_state()
    later = state.put(PUT, [("a", "1")])
    assert not later.ready
    runtime.run()
    assert later.ready
    assert read(state.path, "a") == "1"


@pytest.mark.parametrize("value", [1 << 63, "\ud800"])
def test_what_cannot_be_stored_does_not_take_others_along(
    open_state: Open, runtime: StepRuntime, value: int | str
) -> None:
    state = open_state()
    state.write(PUT, "before", "1")
    state.write(PUT, "bad", value)
    state.write(PUT, "after", "2")
    told = state.settle()
    runtime.run()
    with pytest.raises(StorageFailed):
        told.check()
    assert (read(state.path, "before"), read(state.path, "after")) == ("1", "2")
    assert read(state.path, "bad") is None
    state.write(PUT, "later", "3")
    settled = state.settle()
    runtime.run()
    assert settled.ready
    assert state.position == state.durable
    assert read(state.path, "later") == "3"


def test_a_state_that_cannot_store_a_change_closes(open_state: Open, runtime: StepRuntime) -> None:
    state = open_state()
    state.write(PUT, "bad", 1 << 63)
    closed = state.close()
    runtime.run()
    assert closed.ready
    closed.check()

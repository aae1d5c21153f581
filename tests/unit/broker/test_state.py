"""The state file: group commit, waiting, failures, versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
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

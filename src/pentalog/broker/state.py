"""Everything the broker keeps that is not a record, in one SQLite file.

The owners of state (topics, producers, ...) hold it in memory, read their rows once at open and
queue every change here.  One lane writes: each commit takes all changes queued since the one
before, so many small changes share one sync of the disk.  Where nobody waits for the disk
anyway, small commits need no lane: they are made here, at the end of the turn.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from pentalog.broker.state_schema import MIGRATIONS
from pentalog.log.files import RealFiles
from pentalog.model.errors import BrokerError, Overloaded, StorageFailed, StorageFull
from pentalog.model.ids import new_id, spell_id
from pentalog.model.later import Later
from pentalog.runtime import Runtime, Turns

_log: Final = logging.getLogger(__name__)

FILE_NAME: Final = "pentalog.sqlite"
CHANGES_MAX: Final = 100_000
"""Changes that may wait for a commit; about 50 MB at their worst."""
RETRY_MS: Final = 1_000
_TIMEOUT_S: Final = 5.0
"""How long a commit waits while another process holds the file."""
_NO_SPACE: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
"""The second is what the opening of a database fails with on a full disk."""
TOLD_PER_TURN: Final = 32
"""Waits that are ended in one turn after a commit: each may be a group's answers."""
NEAR_CHANGES_MAX: Final = 64
"""Changes that are committed without the lane, where that is allowed: about a millisecond."""
NEAR_CHANGES_ALL: Final = 4_000
"""Changes committed without the lane before it tidies up: about 16 MB in the file's own log."""

Value: TypeAlias = str | int | float | bytes | None
Row: TypeAlias = tuple[Any, ...]


class Connect(Protocol):
    """Opens a connection to the state file; tests replace it by one that fails."""

    def __call__(self, path: Path, *, timeout_s: float) -> sqlite3.Connection: ...


def connect_file(path: Path, *, timeout_s: float) -> sqlite3.Connection:
    """Open a connection that commits each statement and may be used by the writing thread."""
    # SQLite leaves the permissions of a new file to the umask, and gives them to -wal and -shm.
    with contextlib.suppress(OSError):  # SQLite says what is wrong with it
        RealFiles().open(path, create=True).close()
    return sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)


class _Change(NamedTuple):
    sql: str
    values: tuple[Value, ...]


class State:
    """The file, its queue of changes and those who wait for them."""

    def __init__(
        self,
        path: Path,
        runtime: Runtime,
        *,
        synced: bool = True,
        connect: Connect = connect_file,
    ) -> None:
        """`path` is the file itself: `FILE_NAME` in the data directory.

        Without `synced` the page cache is good enough: changes survive the process, and a power
        cut leaves the file sound, but maybe without the last of them.
        """
        self.path = path
        self.synced = synced
        self._connect = connect
        self._near: sqlite3.Connection | None = None
        """For commits that need no lane; never used while the lane commits."""
        self._near_left = NEAR_CHANGES_ALL
        self.cluster_id = ""
        self.is_new = False
        """The file was made by this process."""
        self._runtime = runtime
        self._database: sqlite3.Connection | None = None
        self.durable = 0
        """How many changes of this process are on the disk."""
        self._applying = 0
        """How many changes the commit that is under way writes."""
        self._queued: list[_Change] = []
        self._waiting: list[Later[None]] = []
        self._waiting_underway: list[Later[None]] = []
        self._underway = False
        self._scheduled = False
        self._refusal: StorageFailed | None = None
        self._closed: Later[None] | None = None
        self._turns = Turns(runtime, TOLD_PER_TURN)

    def open(self) -> None:
        """Open or make the file and bring it to the newest version; reads and writes at once."""
        assert self._database is None, "opened twice"
        database: sqlite3.Connection | None = None
        try:
            database = self._connect(self.path, timeout_s=_TIMEOUT_S)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(f"PRAGMA synchronous = {'FULL' if self.synced else 'NORMAL'}")
            database.execute("PRAGMA foreign_keys = ON")
            self._migrate(database)
            self._identify(database)
            if not self.synced:
                database.execute("PRAGMA wal_autocheckpoint = 0")
                _tidy(database)
                self._near = self._connect_near()
        except (sqlite3.Error, StorageFailed) as error:
            if database is not None:
                database.close()
            if isinstance(error, StorageFailed):
                raise
            raise _refusal(self.path, error) from error
        self._database = database

    def _connect_near(self) -> sqlite3.Connection:
        """A connection that never waits: neither for another process nor for the disk."""
        database = self._connect(self.path, timeout_s=0)
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA wal_autocheckpoint = 0")
        return database

    def _migrate(self, database: sqlite3.Connection) -> None:
        version: int = database.execute("PRAGMA user_version").fetchone()[0]
        if version > len(MIGRATIONS):
            raise StorageFailed(
                f"{self.path} has state version {version}, this pentalog knows versions up to "
                f"{len(MIGRATIONS)}: open it with the newer pentalog that wrote it"
            )
        self.is_new = not version
        for step in range(version, len(MIGRATIONS)):
            database.execute("BEGIN IMMEDIATE")
            MIGRATIONS[step](database)
            database.execute(f"PRAGMA user_version = {step + 1}")
            database.execute("COMMIT")

    def _identify(self, database: sqlite3.Connection) -> None:
        database.execute(
            "INSERT OR IGNORE INTO meta VALUES ('cluster_id', ?), ('format', 'kafka-4')",
            (spell_id(new_id()),),
        )
        found = database.execute("SELECT value FROM meta WHERE name = 'cluster_id'").fetchone()
        self.cluster_id = str(found[0])

    def rows(self, sql: str, *values: Value) -> list[Row]:
        """Read, while opening only: later the file belongs to the writing lane."""
        assert self._database is not None, "read before open"
        assert not self._underway, "read while the lane writes"
        try:
            return self._database.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise _refusal(self.path, error) from error

    def look_up(self, sql: str, *values: Value) -> Later[list[Row]]:
        """Read what has been written before this, once it is on the disk."""
        later: Later[list[Row]] = Later()

        def done(rows: list[Row] | None, error: BaseException | None) -> None:
            if rows is not None:
                later.fill(rows)
            elif isinstance(error, sqlite3.Error):
                later.refuse(_refusal(self.path, error))
            elif error is not None:
                raise error

        def look(settled: Later[None]) -> None:
            try:
                _ = settled.value
            except BrokerError as refusal:
                later.refuse(refusal)
                return
            database = self._database
            if database is None:
                later.refuse(StorageFailed(f"{self.path} is closed: the broker stops"))
                return
            work = lambda: database.execute(sql, values).fetchall()  # noqa: E731
            self._runtime.offload("state", work, done)

        self.settle().then(look)
        return later

    def check(self) -> None:
        """Raise if no change can be taken now; asked before a group of writes."""
        if self._refusal is not None:
            raise type(self._refusal)(*self._refusal.args)
        if len(self._queued) >= CHANGES_MAX:
            raise Overloaded(
                f"{CHANGES_MAX} changes wait to be written to {self.path}: try again in a moment"
            )

    def write(self, sql: str, *values: Value) -> None:
        """Queue one change.  Changes queued in one turn are committed together or not at all.

        Never refuses, so a group of writes is never cut in two: `check` comes first.
        """
        assert self._database is not None, "written before open"
        assert self._closed is None, "written after close"
        self._queued.append(_Change(sql, values))
        self._schedule()

    def put(self, sql: str, rows: Sequence[tuple[Value, ...]]) -> Later[None]:
        """Queue changes that belong together and to no others, and `settle`.

        They are committed before this returns where that needs no lane and nothing is queued
        before them.
        """
        assert self._closed is None, "written after close"
        alone = not (self._queued or self._underway or self._refusal)
        self._queued += [_Change(sql, values) for values in rows]
        if alone and self._near is not None:
            self._commit()
        else:
            self._schedule()
        return self.settle()

    @property
    def position(self) -> int:
        """How many changes have been queued so far; the first `durable` of them are on the disk."""
        return self.durable + self._applying + len(self._queued)

    def settle(self, position: int | None = None) -> Later[None]:
        """Ready as soon as everything queued so far is on the disk; refused if it cannot be.

        With `position`, only the changes up to there count.
        """
        if position is None:
            position = self.position
        if position <= self.durable:
            return Later.now(None)
        later: Later[None] = Later()
        if self._refusal is not None:
            later.refuse(self._refusal)
        elif position <= self.durable + self._applying:
            self._waiting_underway.append(later)
        else:
            self._waiting.append(later)
        return later

    def abandon(self) -> None:
        """Close the file as a crash would: what is queued is lost.  No thread may be writing."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def close(self) -> Later[None]:
        """Commit what is queued, then close; ready when the file is closed."""
        if self._closed is None:
            assert self._database is not None, "closed before open"
            self._closed = Later()
            if not self._underway:
                self._commit()
        return self._closed

    def _schedule(self) -> None:
        if not self._scheduled and not self._underway:
            self._scheduled = True
            self._runtime.soon(self._commit)

    def _commit(self) -> None:
        self._scheduled = False
        if self._underway or self._database is None:
            return
        if not self._queued:
            self._close_if_asked()
            return
        changes, self._queued = self._queued, []
        self._applying = len(changes)
        self._waiting_underway, self._waiting = self._waiting, []
        self._near_left -= len(changes)
        if self._near is not None and self._near_left >= 0 and len(changes) <= NEAR_CHANGES_MAX:
            try:
                _apply(self._near, changes)
            except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
                if not _busy(error):
                    self._committed(changes, error)
                    return
            else:
                self._committed(changes, None)
                return
        self._underway = True
        database = self._database
        tidies = self._near is not None and self._near_left < 0
        if tidies:
            self._near_left = NEAR_CHANGES_ALL

        def work() -> None:
            _apply(database, changes)
            if tidies:
                _tidy(database)

        def done(_: None, error: BaseException | None) -> None:
            self._committed(changes, error)

        self._runtime.offload("state", work, done)

    def _committed(self, changes: list[_Change], error: BaseException | None) -> None:
        self._underway = False
        self._applying = 0
        waiting, self._waiting_underway = self._waiting_underway, []
        if error is None:
            self.durable += len(changes)
            self._refusal = None
            for later in waiting:
                self._turns.do(partial(later.fill, None))
            if self._queued:
                self._schedule()
            else:
                self._close_if_asked()
            return
        if not isinstance(error, sqlite3.Error | OSError):
            self._set_aside(changes, waiting, error)
            return
        # Memory already says what these changes say, so they are kept and tried again; meanwhile
        # nobody may change anything more.
        self._refusal = _refusal(self.path, error)
        self._queued = changes + self._queued
        waiting += self._waiting
        self._waiting = []
        for later in waiting:
            later.refuse(self._refusal)
        if self._closed is None:
            self._runtime.after(RETRY_MS, self._commit)
        else:
            self._close_if_asked()

    def _set_aside(
        self, changes: list[_Change], waiting: list[Later[None]], error: BaseException
    ) -> None:
        """Drop the changes that SQLite cannot hold, a mistake of ours; the others are written.

        Changes of many clients are committed together: one that cannot be written must not take
        the others along, which memory says have been made.
        """
        kept = [change for change in changes if _is_storable(change.values)]
        self.durable += len(changes) - len(kept)
        self._queued = kept + self._queued
        refusal = StorageFailed(f"{self.path} cannot hold what is to be written: {error}")
        for later in waiting:
            self._turns.do(partial(later.refuse, refusal))
        _log.error("a mistake of ours, please report it: %s", refusal, exc_info=error)
        if len(kept) < len(changes):
            self._schedule()
        elif self._closed is None:
            self._runtime.after(RETRY_MS, self._commit)
        else:
            self._close_if_asked()

    def _close_if_asked(self) -> None:
        if self._closed is None or self._database is None:
            return
        database, self._database = self._database, None
        closed = self._closed
        if self._near is not None:
            # Before the other one: the last to close may wait for the disk.
            self._near.close()
            self._near = None

        def done(_: None, error: BaseException | None) -> None:
            if self._refusal is not None:
                closed.refuse(self._refusal)
            elif isinstance(error, Exception):
                closed.refuse(_refusal(self.path, error))
            else:
                closed.fill(None)

        self._runtime.offload("state", database.close, done)


def _busy(error: Exception) -> bool:
    """Is another process in the way, which the lane can wait for?"""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF == sqlite3.SQLITE_BUSY


def _tidy(database: sqlite3.Connection) -> None:
    """Bring the file's own log into the file and begin it anew; both wait for the disk.

    The log begins anew with the next change, so one is made that changes nothing.
    """
    database.execute("PRAGMA wal_checkpoint(PASSIVE)")
    database.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _apply(database: sqlite3.Connection, changes: list[_Change]) -> None:
    if len(changes) == 1:
        database.execute(*changes[0])
        return
    database.execute("BEGIN IMMEDIATE")
    try:
        for sql, values in changes:
            database.execute(sql, values)
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _is_storable(values: tuple[Value, ...]) -> bool:
    """Can SQLite hold these?  Its integers have 64 bits, its texts are UTF-8."""
    try:
        for value in values:
            if isinstance(value, int):
                value.to_bytes(8, signed=True)
            elif isinstance(value, str):
                value.encode()
    except (OverflowError, UnicodeEncodeError):
        return False
    return True


def _refusal(path: Path, error: Exception) -> StorageFailed:
    if getattr(error, "sqlite_errorcode", None) in _NO_SPACE:
        return StorageFull(f"no space left to write {path}: free some; changes then go on")
    return StorageFailed(f"cannot use {path}: {error}; check the disk and the file's permissions")

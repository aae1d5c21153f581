"""The state file as an atomic store: SQLite in memory that loses unsynced commits at a power cut.

What SQLite itself promises is taken for granted: a commit is whole or absent, and later ones
never survive without earlier ones.  With `synchronous = FULL` a commit is durable when it
returns; otherwise it is durable after the next checkpoint.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.simulation.disk import Disk
from tests.simulation.files import Faults

_READS = ("SELECT", "PRAGMA")


def _connect() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)


class Database:
    """The file: it outlives the processes that use it."""

    def __init__(self) -> None:
        self._connection = _connect()
        self._base = b""
        """Content at the last checkpoint."""
        self._commits: list[list[tuple[str, Sequence[Any]]]] = []
        """Commits since then that a power cut may take."""
        self._open: list[tuple[str, Sequence[Any]]] = []

    def execute(self, sql: str, values: Sequence[Any], *, synced: bool) -> sqlite3.Cursor:
        word = sql.split(None, 1)[0]
        if word in _READS:
            if "wal_checkpoint" in sql:
                self.checkpoint()
            if "user_version =" not in sql:
                return self._connection.execute(sql, values)
        cursor = self._connection.execute(sql, values)
        if word == "ROLLBACK":
            self._open.clear()
            return cursor
        self._open.append((sql, values))
        if not self._connection.in_transaction:
            self._committed(synced)
        return cursor

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def _committed(self, synced: bool) -> None:
        if synced:
            self._commits.clear()
        else:
            self._commits.append(list(self._open))
        self._open.clear()

    def open(self) -> None:
        """A process opens the file: from here on a power cut may take unsynced commits."""
        if not self._commits:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Everything committed so far is durable."""
        empty = not self._connection.execute("PRAGMA page_count").fetchone()[0]
        self._base = b"" if empty else self._connection.serialize()
        self._commits.clear()

    def kill(self) -> None:
        """The process is gone: what was not committed is not there."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._open.clear()

    def cut_power(self, random: Random) -> int:
        """Lose a number of unsynced commits; returns how many."""
        self.kill()
        count = random.choice((0, len(self._commits), random.randint(0, len(self._commits))))
        if count:
            kept = self._commits[: len(self._commits) - count]
            self._connection.close()
            self._connection = _connect()
            if self._base:
                self._connection.deserialize(self._base)
            for commit in kept:
                for sql, values in commit:
                    self._connection.execute(sql, values)
        self.checkpoint()
        return count


class Connection:
    """What `sqlite3.connect` returns, as far as the state uses it."""

    def __init__(
        self, database: Database, disk: Disk, faults: Faults, gate: Callable[[str, Path], None]
    ) -> None:
        self._database: Database | None = database
        self._disk = disk
        self._faults = faults
        self._gate = gate
        self._synced = True

    @property
    def in_transaction(self) -> bool:
        return self._database is not None and self._database.in_transaction

    def execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        if self._database is None:
            raise sqlite3.ProgrammingError("Cannot operate on a closed database.")
        if sql.startswith("PRAGMA journal_mode"):
            return self._database.execute("SELECT 'wal'", (), synced=True)
        if sql.startswith("PRAGMA synchronous"):
            self._synced = sql.endswith("FULL")
            return self._database.execute("SELECT 1", (), synced=True)
        writes = not sql.startswith(("SELECT", "PRAGMA", "BEGIN", "ROLLBACK"))
        if writes:
            self._gate("sql", Path("/data/pentalog.sqlite"))
            self._fail(sql)
        cursor = self._database.execute(sql, values, synced=self._synced)
        if writes:
            self._gate("sql done", Path("/data/pentalog.sqlite"))
        return cursor

    def _fail(self, sql: str) -> None:
        if self._disk.space_pages == 0:
            raise _error("database or disk is full", sqlite3.SQLITE_FULL)
        if self._faults.errors.get("sql"):
            raise _error("disk I/O error", sqlite3.SQLITE_IOERR)

    def close(self) -> None:
        self._database = None


def _error(text: str, code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error

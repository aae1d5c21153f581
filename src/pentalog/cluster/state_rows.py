"""The tables of the broker's state in memory, and their rows as records of a compacted topic.

A record's key is a JSON array of the table and the primary key, its value a JSON object of the
columns; a record without a value deletes the row.  Bytes are `{"base64": "..."}`.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pentalog.broker.state import Row, Value
from pentalog.broker.state_schema import MIGRATIONS
from pentalog.model.errors import StorageFailed
from pentalog.model.types import Record

SCHEMA: Final = len(MIGRATIONS)
_BYTES: Final = "base64"


class Change(NamedTuple):
    sql: str
    values: tuple[Value, ...]


class _Shape(NamedTuple):
    columns: tuple[str, ...]
    keys: tuple[str, ...]


class Tables:
    """One life of them: empty at first, and thrown away with its owner's term."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, cached_statements=256
        )
        for migrate in MIGRATIONS:
            migrate(self._database)
        self._touched: dict[tuple[Value, ...], None] = {}
        """The table and primary key of every row changed since they were last taken."""
        self._database.create_function("touched", -1, self._touch)
        self._shapes = {name: self._shape(name) for name in self._names()}

    def rows(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        return self._database.execute(sql, values).fetchall()

    def change(self, changes: Iterable[Change]) -> list[Record]:
        """Make changes, all or none; the rows they changed, as records."""
        self._touched.clear()
        self._database.execute("BEGIN")
        try:
            for sql, values in changes:
                self._database.execute(sql, values)
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
        touched, self._touched = self._touched, {}
        return [self._record(str(table), keys) for table, *keys in touched]

    def apply(self, records: Iterable[Record]) -> set[str]:
        """Take rows over as somebody else has written them; the tables they were of.

        Those of tables and columns that only a newer pentalog has are passed over.
        """
        changed: set[str] = set()
        for record in records:
            assert record.key is not None
            table, *keys = _read(record.key)
            shape = self._shapes.get(table)
            if shape is None or len(keys) != len(shape.keys):
                continue
            changed.add(table)
            if record.value is None:
                self._database.execute(
                    f"DELETE FROM {table} WHERE {_same(shape.keys)}", tuple(map(_plain, keys))
                )
                continue
            told = _read(record.value)
            columns = [name for name in shape.columns if name in told]
            marks = ", ".join("?" * len(columns))
            self._database.execute(
                f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({marks})",
                tuple(_plain(told[name]) for name in columns),
            )
        self._touched.clear()
        return changed

    def all(self, tables: Iterable[str]) -> list[Record]:
        """Every row of these tables, as records."""
        found: list[Record] = []
        for table in tables:
            keys = ", ".join(self._shapes[table].keys)
            found += [self._record(table, row) for row in self.rows(f"SELECT {keys} FROM {table}")]
        return found

    def close(self) -> None:
        self._database.close()

    def _names(self) -> list[str]:
        return [name for (name,) in self.rows("SELECT name FROM sqlite_master WHERE type='table'")]

    def _shape(self, table: str) -> _Shape:
        """Learn its columns, and see to it that every change of it is noticed."""
        described = self.rows(f"PRAGMA table_info({table})")
        keys = [name for _, name, *_ in sorted((each for each in described if each[5]), key=_rank)]
        for event, sides in (("INSERT", "NEW"), ("UPDATE", "OLD NEW"), ("DELETE", "OLD")):
            noted = [
                f"SELECT touched('{table}', {', '.join(f'{side}.{key}' for key in keys)});"
                for side in sides.split()
            ]
            self._database.execute(
                f"CREATE TRIGGER touched_{table}_{event} AFTER {event} ON {table}"
                f" BEGIN {' '.join(noted)} END"
            )
        return _Shape(tuple(each[1] for each in described), tuple(keys))

    def _touch(self, *row: Value) -> None:
        self._touched[row] = None

    def _record(self, table: str, keys: Sequence[Value]) -> Record:
        shape = self._shapes[table]
        columns = ", ".join(shape.columns)
        found = self.rows(f"SELECT {columns} FROM {table} WHERE {_same(shape.keys)}", keys)
        value = _written(dict(zip(shape.columns, found[0], strict=True))) if found else None
        return Record(value, _written([table, *keys]))


def row(table: str, columns: Mapping[str, Value], *keys: Value) -> Record:
    """A record that makes a row what these columns say."""
    return Record(_written(columns), _written([table, *keys]))


def no_row(table: str, *keys: Value) -> Record:
    """A record that deletes a row."""
    return Record(None, _written([table, *keys]))


def table_of(record: Record) -> str:
    """Which table a record is a row of."""
    assert record.key is not None
    return str(_read(record.key)[0])


def _rank(described: Row) -> int:
    return int(described[5])


def _same(keys: Sequence[str]) -> str:
    return " AND ".join(f"{key} = ?" for key in keys)


def _written(value: Any) -> bytes:
    return json.dumps(value, default=_bytes, separators=(",", ":"), ensure_ascii=False).encode()


def _bytes(value: Any) -> dict[str, str]:
    assert isinstance(value, bytes)
    return {_BYTES: base64.b64encode(value).decode()}


def _read(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as flaw:
        raise StorageFailed(
            f"a record of the gateways' state cannot be read ({flaw}): {data[:100]!r}"
        ) from flaw


def _plain(value: Any) -> Value:
    if isinstance(value, dict):
        return base64.b64decode(value[_BYTES])
    assert value is None or isinstance(value, str | int | float)
    return value

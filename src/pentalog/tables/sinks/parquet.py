"""Plain Parquet files with a manifest of our own: a directory any Parquet reader can be given.

The manifest is a log in `_manifest`, one small file a commit:

| name | holds |
|---|---|
| `<version>.json` | files added and removed, the state after, the ledger's entry, the schema |
| `<version>.whole.json` | every fiftieth: all files of the table, so that older ones need no look |

A commit is made by linking a finished file to the next version's name, which fails if that
exists: of two writers one loses.  Object stores cannot do that, so the table must be in a file
system.
"""

from __future__ import annotations

import base64
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pentalog.model.types import Partition
from pentalog.tables import replacement
from pentalog.tables.files import File, FileSet, Layout
from pentalog.tables.pipeline import TableAt
from pentalog.tables.sinks.reading import read_files
from pentalog.tables.sinks.refusals import Busy, Missing, SinkRefused
from pentalog.tables.sinks.state import (
    Entry,
    State,
    Step,
    after,
    entry_of,
    state_as_json,
    state_from_json,
)
from pentalog.tables.storage import storage_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame, SparkSession

_WHOLE_EVERY: Final = 50
_MANIFEST: Final = "_manifest"
_FILE_BYTES: Final = 134_217_728


@dataclass(slots=True)
class _Table:
    """A version of the table: everything its manifest says."""

    version: int = -1
    schema: str = ""
    state: State = field(default_factory=State)
    files: dict[str, File] = field(default_factory=dict)


class ParquetSink:
    """One directory of Parquet files and its manifest."""

    keep_partitions = True

    def __init__(self, at: TableAt) -> None:
        self.at = at
        self._storage = storage_of(at.uri, at.storage_options)
        if not self._storage.is_local:
            raise SinkRefused(
                f"{at.uri}: plain Parquet needs a file system that can link files; set"
                " sink = 'delta' or 'iceberg' for an object store"
            )
        self._manifest = Path(self._storage.root) / _MANIFEST
        self._table = _Table()
        self._file_bytes = _FILE_BYTES

    def exists(self) -> bool:
        return bool(self._versions())

    def schema(self) -> pa.Schema | None:
        import pyarrow as pa

        table = self._current()
        if not table.schema:
            return None
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(table.schema)))

    def prepare(self, schema: pa.Schema) -> pa.Schema:
        import pyarrow as pa

        known = self.schema()
        grown = schema if known is None else pa.unify_schemas([known, schema])
        if known is None or not grown.equals(known):
            text = base64.b64encode(grown.serialize().to_pybytes()).decode()
            self._commit({"schema": text}, self._table)
        return grown

    def layout(self, file_bytes: int, *, whole: bool = False) -> Layout:
        self._file_bytes = file_bytes
        # What will be merged is read again here: whole rows, wherever they go in the end.
        return self._layout(() if self.at.key and not whole else self.at.partition_by)

    def _layout(self, partition_by: tuple[str, ...]) -> Layout:
        schema = self.schema()
        assert schema is not None, "prepared first"
        return Layout(
            self.at.uri,
            schema,
            partition_by,
            self.keep_partitions,
            self._file_bytes,
            self.at.fsync,
        )

    def announce(self, query: str, partitions: Iterable[Partition]) -> None:
        """Nothing: the state is written whole."""

    def state(self) -> State:
        return self._current().state

    def append(self, files: Sequence[File], step: Step) -> None:
        self._commit({**_entry(step, files), "add": [_listed(one) for one in files]}, self._table)

    def merge(self, files: Sequence[File], step: Step) -> None:
        """Replace rows by key; of two rows of a key the one with the later place stays."""
        table, rows = self._table, self._staged(files)
        near = replacement.bounds(rows, self.at.key)
        there = [one for one in table.files.values() if _may_hold(one, near)]

        def write(made: FileSet) -> list[File]:
            return replacement.replaced(self._opened(there), rows, self.at.key, made)

        self._rewrite(table, write, {"step": step, "entry": step.metadata(rows.num_rows)})

    def replace(self, files: Sequence[File], step: Step, schema: pa.Schema) -> None:
        table = self._table
        change = {
            **_entry(step, files),
            "schema": base64.b64encode(schema.serialize().to_pybytes()).decode(),
            "remove": list(table.files),
            "add": [_listed(one) for one in files],
        }
        self._commit(change, table)

    def cut(self, step: Step) -> None:
        table = self._table
        mark = "" if self.at.layer in ("bronze", "dead_letters") else "_"

        def write(made: FileSet) -> list[File]:
            there = self._opened(table.files.values())
            return replacement.removed_below(there, step.covered, mark, made)

        self._rewrite(table, write, _entry(step, []))

    def ledger(self) -> list[Entry]:
        found = []
        for version in self._versions():
            commit = self._read(version)
            entry = entry_of(version, commit["time_ms"], commit.get("entry", {}))
            if entry is not None:
                found.append(entry)
        return found

    def version(self) -> int:
        return self._table.version

    def files(self) -> list[str]:
        return [self._storage.path(path) for path in self._current().files]

    def arrow(self) -> pa.Table:
        import pyarrow.dataset as ds

        schema = self.schema()
        if schema is None:
            raise Missing(f"{self.at.uri} is no table yet; run the pipeline {self.at.pipeline}")
        return ds.dataset(self.files(), schema=schema, format="parquet").to_table()

    def read(self, spark: SparkSession) -> DataFrame:
        schema = self.schema()
        if schema is None:
            raise Missing(f"{self.at.uri} is no table yet; run the pipeline {self.at.pipeline}")
        return read_files(spark, self.at, schema, [(path, {}) for path in self._table.files])

    def compact(self, file_bytes: int) -> Mapping[str, Any]:
        table = self._current()
        self._file_bytes = file_bytes
        small = replacement.small_files(
            table.files.values(),
            lambda one: one.size_bytes,
            lambda one: tuple(one.partition.items()),
            file_bytes // 2,
        )
        if not small:
            return {"files_removed": 0, "files_added": 0}

        def write(made: FileSet) -> list[File]:
            replacement.copied((opened for _, opened in self._opened(small)), made)
            return small

        added = self._rewrite(table, write, {})
        return {"files_removed": len(small), "files_added": added}

    def vacuum(self, retention_ms: int, *, dry_run: bool) -> list[str]:
        table, root = self._current(), Path(self._storage.root)
        before_s = time.time() - retention_ms / 1000
        found = [
            path
            for path in sorted(root.rglob("*.parquet"))
            if str(path.relative_to(root)) not in table.files and path.stat().st_mtime <= before_s
        ]
        if not dry_run:
            for path in found:
                path.unlink(missing_ok=True)
        return [str(path.relative_to(root)) for path in found]

    def discard(self, files: Iterable[File]) -> None:
        self._storage.remove([one.path for one in files])

    def examine(self) -> None:
        """Nothing: what is written is read by the library it was written with."""

    def drop(self) -> None:
        if Path(self._storage.root).exists():
            self._storage.filesystem.delete_dir(self._storage.root)
        self._table = _Table()

    def _rewrite(
        self, table: _Table, write: Callable[[FileSet], Sequence[File]], change: Mapping[str, Any]
    ) -> int:
        """Commit what `write` makes in place of the files it returns; how many it made."""
        made = FileSet(self._layout(self.at.partition_by))
        with made.discarding(Exception):
            removed = [one.path for one in write(made)]
            added = [_listed(one) for one in made.close()]
        with made.discarding(Busy):
            self._commit({**change, "remove": removed, "add": added}, table)
        return len(added)

    def _opened(self, files: Iterable[File]) -> Iterator[tuple[File, pq.ParquetFile]]:
        import pyarrow.parquet as pq

        for one in files:
            with pq.ParquetFile(self._storage.path(one.path)) as opened:
                yield one, opened

    def _staged(self, files: Sequence[File]) -> pa.Table:
        import pyarrow as pa

        schema = self.schema()
        assert schema is not None, "prepared first"
        parts = [opened.read() for _, opened in self._opened(files)]
        return pa.concat_tables(parts).cast(schema) if parts else schema.empty_table()

    def _versions(self) -> list[int]:
        if not self._manifest.is_dir():
            return []
        names = (one.name.partition(".") for one in self._manifest.iterdir())
        return sorted(int(stem) for stem, _, rest in names if rest == "json" and stem.isdecimal())

    def _read(self, version: int, kind: str = "json") -> dict[str, Any]:
        found = json.loads((self._manifest / f"{version:020d}.{kind}").read_text(encoding="utf-8"))
        assert isinstance(found, dict)
        return found

    def _current(self) -> _Table:
        """The newest version, from the last whole one on."""
        versions = [version for version in self._versions() if version > self._table.version]
        table = self._table
        for version in reversed(versions):
            if (self._manifest / f"{version:020d}.whole.json").exists():
                whole = self._read(version, "whole.json")
                files = {one["path"]: _file(one) for one in whole["files"]}
                table = _Table(version, whole["schema"], state_from_json(whole["state"]), files)
                break
        for version in versions:
            if version > table.version:
                table = _after(table, version, self._read(version))
        self._table = table
        return table

    def _commit(self, change: dict[str, Any], table: _Table) -> None:
        """Become the next version, or `Busy` if another did."""
        self._manifest.mkdir(parents=True, exist_ok=True)
        version = table.version + 1
        commit = {"version": version, "time_ms": time.time_ns() // 1_000_000, **change}
        if "step" in commit:
            commit["state"] = state_as_json(after(table.state, commit.pop("step")))
        beside = self._manifest / f".{uuid.uuid4().hex}"
        self._write(beside, commit)
        try:
            os.link(beside, self._manifest / f"{version:020d}.json")
        except FileExistsError as error:
            raise Busy(f"{self.at.uri}: version {version} was made by another writer") from error
        finally:
            beside.unlink()
        if self.at.fsync:
            self._storage.sync(f"{_MANIFEST}/{version:020d}.json")
        self._table = _after(table, version, commit)
        if version % _WHOLE_EVERY == 0:
            self._write_whole(self._table)

    def _write_whole(self, table: _Table) -> None:
        whole = {
            "schema": table.schema,
            "state": state_as_json(table.state),
            "files": [_listed(one) for one in table.files.values()],
        }
        beside = self._manifest / f".{uuid.uuid4().hex}"
        self._write(beside, whole)
        beside.replace(self._manifest / f"{table.version:020d}.whole.json")

    def _write(self, path: Path, value: Mapping[str, Any]) -> None:
        with path.open("w", encoding="utf-8") as file:
            json.dump(value, file)
            file.flush()
            if self.at.fsync:
                os.fsync(file.fileno())


def _after(table: _Table, version: int, commit: Mapping[str, Any]) -> _Table:
    removed = set(commit.get("remove", ()))
    files = {path: one for path, one in table.files.items() if path not in removed}
    files.update((one["path"], _file(one)) for one in commit.get("add", ()))
    state = state_from_json(commit["state"]) if "state" in commit else table.state
    return _Table(version, commit.get("schema", table.schema), state, files)


def _entry(step: Step, files: Sequence[File]) -> dict[str, Any]:
    return {"step": step, "entry": step.metadata(sum(one.rows for one in files))}


def _listed(one: File) -> dict[str, Any]:
    return {**one._asdict(), "partition": dict(one.partition)}


def _file(value: Mapping[str, Any]) -> File:
    return File(**value)


def _may_hold(one: File, near: Mapping[str, replacement.Bounds]) -> bool:
    """Whether a file can have rows within these bounds, as far as its statistics tell."""
    stats = json.loads(one.stats)
    for name, (least, greatest) in near.items():
        low, high = stats["minValues"].get(name), stats["maxValues"].get(name)
        if isinstance(low, int) and isinstance(high, int) and (low > greatest or high < least):
            return False
    return True

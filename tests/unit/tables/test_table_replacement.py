"""Rows replaced by key, files written together, columns changed: in every kind of table."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog

from pentalog.model.types import Partition
from pentalog.tables import commit, replacement
from pentalog.tables.files import File, FileSet
from pentalog.tables.pipeline import TableAt
from pentalog.tables.sinks import Busy, Range, Sink, SinkRefused, Step, open_table

KINDS = tuple(os.environ.get("PENTALOG_TABLE_KINDS", "delta parquet iceberg").split())
OURS = tuple(one for one in KINDS if not one.startswith("delta"))
"""Kinds whose files we write anew ourselves."""
ICEBERG = tuple(one for one in KINDS if one.startswith("iceberg"))
AT = Partition("orders", 0)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
    ]
)


def place(folder: Path, kind: str, **more: Any) -> TableAt:
    return TableAt(f"{folder}/lake/silver", kind, "p", "silver", fsync=False, **more)


def opened(at: TableAt) -> Sink:
    sink = open_table(at)
    sink.prepare(SCHEMA)
    return sink


def files_of(sink: Sink, start: int, keys: list[tuple[int | None, str | None]]) -> list[File]:
    """One row for each key, at the offsets from `start` on; of equal keys only the last."""
    latest = {key: start + number for number, key in enumerate(keys)}
    found = [
        {"id": id_, "name": name, "_topic": "orders", "_partition": 0, "_offset": offset}
        for (id_, name), offset in latest.items()
    ]
    files = FileSet(sink.layout(1 << 20))
    files.add(pa.Table.from_pylist(found, schema=SCHEMA))
    return files.close()


def take(sink: Sink, batch: int, start: int, keys: list[tuple[int | None, str | None]]) -> bool:
    ranges = {AT: Range(start, start + len(keys))}
    return commit.settle(sink, "q", batch, ranges, ranges, files_of(sink, start, keys))


def plain(sink: Sink, batch: int, start: int, count: int) -> bool:
    return take(sink, batch, start, [(one, f"n{one % 3}") for one in range(start, start + count)])


def by_key(at: TableAt) -> dict[tuple[int | None, str | None], int]:
    rows = open_table(at).arrow().to_pylist()
    found = {(one["id"], one["name"]): one["_offset"] for one in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def offsets(at: TableAt) -> list[int]:
    return sorted(open_table(at).arrow().column("_offset").to_pylist())


def on_disk(at: TableAt) -> set[str]:
    return {str(path) for path in Path(at.uri).rglob("part-*.parquet")}


Key = tuple[int | None, str | None]
KEYS = st.tuples(st.one_of(st.none(), st.integers(0, 5)), st.sampled_from([None, "a", "b"]))
BATCHES = st.lists(st.tuples(st.lists(KEYS, max_size=6), st.booleans()), max_size=6)


@given(BATCHES, st.booleans())
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize("kind", KINDS)
def test_the_latest_row_of_every_key_stays(
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[tuple[list[Key], bool]],
    divided: bool,
) -> None:
    """Whatever comes in which batches, replayed or not, with compaction between."""
    more = {"partition_by": ("name",)} if divided else {}
    at = place(tmp_path_factory.mktemp("t"), kind, key=("id", "name"), **more)
    sink = opened(at)
    reached = 100
    expected: dict[Key, int] = {}
    for batch, (keys, again) in enumerate(batches):
        for driver in [sink, open_table(at)][: 1 + again]:
            take(driver, batch, reached, keys)
        expected |= {key: reached + number for number, key in enumerate(keys)}
        reached += len(keys)
        if again:
            sink.compact(1 << 20)
    assert by_key(at) == expected
    # Rows from before, as a backfill brings them, come in only where there is none.
    old: list[Key] = [(number, "a") for number in range(8)]
    sink.announce("", [AT])
    sink.state()
    files = files_of(sink, 0, old)
    sink.merge(files, Step("backfill", -1, {}, {AT: Range(0, reached)}))
    sink.discard(files)
    assert by_key(at) == {key: number for number, key in enumerate(old)} | expected
    assert open_table(at).state().covered == {AT: Range(0, reached)}


@pytest.mark.parametrize("kind", OURS)
def test_only_files_with_replaced_rows_are_written_anew(kind: str, tmp_path: Path) -> None:
    at = place(tmp_path, kind, key=("id",))
    sink = opened(at)
    for batch in range(3):
        plain(sink, batch, batch * 10, 10)
    before = set(open_table(at).files())
    take(sink, 3, 30, [(5, "new"), (6, "new")])
    after = set(open_table(at).files())
    assert len(before) == 3
    assert len(before & after) == 2
    assert len(by_key(at)) == 30
    assert {name for (_, name), offset in by_key(at).items() if offset >= 30} == {"new"}
    # What was only a step on the way is gone: staged rows are in no table's file.
    assert on_disk(at) == before | after


@pytest.mark.parametrize("kind", ICEBERG)
def test_an_upsert_is_one_snapshot_with_the_ledger_in_it(kind: str, tmp_path: Path) -> None:
    at = place(tmp_path, kind, key=("id",))
    sink = opened(at)
    take(sink, 0, 0, [(1, "a"), (2, "a")])
    versions = sink.version()
    take(sink, 1, 2, [(2, "b"), (3, "b")])
    assert sink.version() == versions + 1
    found = [(one.batch, one.rows, dict(one.ranges)) for one in open_table(at).ledger()]
    assert found == [(0, 2, {AT: Range(0, 2)}), (1, 2, {AT: Range(2, 4)})]


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_drivers_one_replaces(kind: str, tmp_path: Path) -> None:
    at = place(tmp_path, kind, key=("id",))
    sink, other = opened(at), open_table(at)
    take(sink, 0, 0, [(1, "a"), (2, "a")])
    ranges = {AT: Range(2, 4)}
    mine, theirs = (files_of(one, 2, [(2, "b"), (3, "b")]) for one in (sink, other))
    for one in (sink, other):
        one.announce("q", ranges)
        one.state()
    step = Step("q", 1, ranges, {AT: Range(0, 4)})
    other.merge(theirs, step)
    other.discard(theirs)
    with pytest.raises(Busy):
        sink.merge(mine, step)
    assert not commit.settle(sink, "q", 1, ranges, ranges, mine)
    assert by_key(at) == {(1, "a"): 0, (2, "b"): 2, (3, "b"): 3}
    if kind in OURS:
        sink.vacuum(0, dry_run=False)
        assert on_disk(at) == set(open_table(at).files())


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_without_rows_is_fenced_as_well(kind: str, tmp_path: Path) -> None:
    """A driver that was overtaken must not put the table's end back."""
    at = place(tmp_path, kind)
    sink, other = opened(at), open_table(at)
    plain(sink, 0, 0, 5)
    files, late = files_of(other, 5, [(5, "n")]), files_of(other, 6, [(6, "n"), (7, "n")])
    for one in (sink, other):
        one.announce("q", [AT])
        one.state()
    other.append(files, Step("q", 1, {AT: Range(5, 6)}, {AT: Range(0, 6)}))
    with pytest.raises(Busy):
        sink.append([], Step("late", 0, {AT: Range(5, 5)}, {AT: Range(0, 5)}))
    for one in (sink, other):
        one.state()
    sink.append([], Step("q", 2, {AT: Range(6, 8)}, {AT: Range(0, 8)}))
    with pytest.raises(Busy):
        other.append(late, Step("q", 2, {AT: Range(6, 8)}, {AT: Range(0, 8)}))
    assert open_table(at).state().covered == {AT: Range(0, 8)}
    assert offsets(at) == list(range(6))


@pytest.mark.parametrize("kind", OURS)
def test_a_file_that_is_alone_in_its_partition_is_left_alone(kind: str, tmp_path: Path) -> None:
    at = place(tmp_path, kind, partition_by=("name",))
    sink = opened(at)
    plain(sink, 0, 0, 9)
    assert sink.compact(1 << 20) == {"files_removed": 0, "files_added": 0}
    plain(sink, 1, 9, 9)
    assert sink.compact(1 << 20) == {"files_removed": 6, "files_added": 3}
    assert sink.compact(1 << 20) == {"files_removed": 0, "files_added": 0}
    assert offsets(at) == list(range(18))


@pytest.mark.parametrize("kind", ICEBERG)
def test_files_of_the_size_aimed_at_are_not_touched(kind: str, tmp_path: Path) -> None:
    at = place(tmp_path, kind)
    sink = opened(at)
    for batch in range(4):
        plain(sink, batch, batch * 10, 10)
    sizes = [Path(one).stat().st_size for one in sink.files()]
    assert sink.compact(min(sizes)) == {"files_removed": 0, "files_added": 0}
    assert sink.compact(1 << 20) == {"files_removed": 4, "files_added": 1}
    assert offsets(at) == list(range(40))


@pytest.mark.parametrize("kind", ICEBERG)
def test_a_batch_that_comes_while_files_are_written_together(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not in the way: the files that were written are committed on top of it."""
    at = place(tmp_path, kind)
    sink, other = opened(at), open_table(at)
    for batch in range(3):
        plain(other, batch, batch * 10, 10)
    written = replacement.copied

    def copied(files: Any, made: FileSet) -> None:
        written(files, made)
        plain(other, 3, 30, 10)

    monkeypatch.setattr(replacement, "copied", copied)
    assert sink.compact(1 << 20) == {"files_removed": 3, "files_added": 1}
    assert offsets(at) == list(range(40))
    assert open_table(at).state().covered == {AT: Range(0, 40)}
    assert len(open_table(at).files()) == 2


@pytest.mark.parametrize("kind", OURS)
def test_another_compaction_that_was_faster(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = place(tmp_path, kind)
    sink, other = opened(at), open_table(at)
    for batch in range(3):
        plain(other, batch, batch * 10, 10)
    written = replacement.copied

    def copied(files: Any, made: FileSet) -> None:
        written(files, made)
        monkeypatch.setattr(replacement, "copied", written)
        other.compact(1 << 20)

    monkeypatch.setattr(replacement, "copied", copied)
    with pytest.raises(Busy):
        sink.compact(1 << 20)
    assert sink.compact(1 << 20) == {"files_removed": 0, "files_added": 0}
    assert offsets(at) == list(range(30))
    sink.vacuum(0, dry_run=False)
    assert on_disk(at) == set(open_table(at).files())


@pytest.mark.parametrize("kind", KINDS)
def test_vacuum_after_compaction_leaves_what_is_needed(kind: str, tmp_path: Path) -> None:
    at = place(tmp_path, kind)
    sink = opened(at)
    for batch in range(4):
        plain(sink, batch, batch * 10, 10)
    sink.compact(1 << 20)
    sink.vacuum(0, dry_run=False)
    assert {Path(one).name for one in open_table(at).files()} == {
        path.name for path in Path(at.uri).rglob("*.parquet")
    }
    assert plain(sink, 4, 40, 5)
    assert offsets(at) == list(range(45))


@pytest.mark.parametrize("kind", ICEBERG)
def test_vacuum_removes_manifests_that_no_snapshot_needs(kind: str, tmp_path: Path) -> None:
    at = place(tmp_path, kind)
    sink = opened(at)
    for batch in range(4):
        plain(sink, batch, batch * 10, 10)
    sink.compact(1 << 20)
    metadata = Path(at.uri) / "metadata"
    before = set(metadata.glob("*.avro"))
    sink.vacuum(0, dry_run=False)
    catalog = SqlCatalog("pentalog", uri=f"sqlite:///{tmp_path}/lake/iceberg.db")
    loaded = catalog.load_table("pentalog.silver")
    (snapshot,) = loaded.snapshots()
    needed = {snapshot.manifest_list, *(one.manifest_path for one in snapshot.manifests(loaded.io))}
    assert {str(one).removeprefix("file://") for one in needed} == {
        str(one) for one in metadata.glob("*.avro")
    }
    assert len(needed) < len(before)
    assert offsets(at) == list(range(40))


@pytest.mark.parametrize("kind", KINDS)
def test_columns_change_with_all_rows(kind: str, tmp_path: Path) -> None:
    """A rebuild: another type, a column less, a column more."""
    at = place(tmp_path, kind)
    sink = opened(at)
    plain(sink, 0, 0, 5)
    changed = pa.schema(
        [
            ("id", pa.string()),
            ("more", pa.float64()),
            *(SCHEMA.field(one) for one in ("_topic", "_partition", "_offset")),
        ]
    )
    rows = [
        {"id": f"i{one}", "more": one / 2, "_topic": "orders", "_partition": 0, "_offset": one}
        for one in range(5)
    ]
    files = FileSet(dataclasses.replace(sink.layout(1 << 20), schema=changed))
    files.add(pa.Table.from_pylist(rows, schema=changed))
    sink.announce("", [AT])
    sink.state()
    sink.replace(files.close(), Step("rebuild", -1, {}, {AT: Range(0, 5)}), changed)
    again = open_table(at)
    assert sorted(again.arrow().to_pylist(), key=lambda one: one["_offset"]) == rows
    schema = again.schema()
    assert schema is not None
    assert set(schema.names) == set(changed.names)
    assert again.state().batches == {"q": 0}


@pytest.mark.parametrize("kind", OURS)
def test_a_key_of_many_values_is_refused(kind: str, tmp_path: Path) -> None:
    at = place(tmp_path, kind, key=("parts",))
    sink = open_table(at)
    schema = pa.schema([*SCHEMA, ("parts", pa.list_(pa.string()))])
    sink.prepare(schema)
    row = {"id": 1, "name": "a", "_topic": "orders", "_partition": 0, "_offset": 0, "parts": ["x"]}
    ranges = {AT: Range(0, 1)}

    def put(batch: int) -> None:
        files = FileSet(sink.layout(1 << 20))
        files.add(pa.Table.from_pylist([row], schema=schema))
        commit.settle(sink, "q", batch, {AT: Range(batch, batch + 1)}, ranges, files.close())

    put(0)
    ranges = {AT: Range(1, 2)}
    with pytest.raises(SinkRefused, match=r"column parts is list<.*; a key is made of columns"):
        put(1)


@pytest.mark.parametrize("kind", KINDS)
def test_retention_that_was_overtaken_looks_again(kind: str, tmp_path: Path) -> None:
    at = place(tmp_path, kind)
    sink, other = opened(at), open_table(at)
    plain(sink, 0, 0, 10)
    sink.state()
    plain(other, 1, 10, 5)
    with pytest.raises(Busy):
        sink.cut(Step("retention", -1, {}, {AT: Range(6, 10)}))
    sink.state()
    sink.cut(Step("retention", -1, {}, {AT: Range(6, 15)}))
    assert offsets(at) == list(range(6, 15))
    assert open_table(at).state().covered == {AT: Range(6, 15)}


@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_a_failure_after_the_commit_costs_no_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new files are part of the table by then, whatever the caller is told."""
    at = place(tmp_path, kind)
    sink = opened(at)
    for batch in range(3):
        plain(sink, batch, batch * 10, 10)

    def fail(*_: object) -> None:
        raise OSError("no space left")

    if kind == "parquet":
        monkeypatch.setattr("pentalog.tables.sinks.parquet._WHOLE_EVERY", 1)
        monkeypatch.setattr("pentalog.tables.sinks.parquet.ParquetSink._write_whole", fail)
    else:
        monkeypatch.setattr("pyiceberg.table.Transaction._cleanup_uncommitted_manifests", fail)
    with pytest.raises(OSError, match="no space left"):
        sink.compact(1 << 20)
    assert offsets(at) == list(range(30))
    assert len(open_table(at).files()) == 1

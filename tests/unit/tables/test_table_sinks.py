"""Every kind of table, without Spark: one commit, all or nothing, once."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pentalog.model.types import Partition
from pentalog.tables import commit, jars
from pentalog.tables.files import File, FileSet
from pentalog.tables.pipeline import TableAt
from pentalog.tables.sinks import Busy, Range, Sink, SinkRefused, Step, open_table, probe

KINDS = tuple(os.environ.get("PENTALOG_TABLE_KINDS", "delta parquet iceberg").split())
"""Those by jar are tried in a process of their own, that has the jars."""
AT = Partition("orders", 0)
OTHER = Partition("orders", 1)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("region", pa.string()),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
MOMENT = datetime.datetime(2026, 11, 16, 12, 0, 0, 1500, tzinfo=datetime.UTC)


@pytest.fixture(params=KINDS)
def at(request: pytest.FixtureRequest, tmp_path: Path) -> TableAt:
    return TableAt(f"{tmp_path}/lake/silver", request.param, "p", "silver", fsync=False)


@pytest.fixture
def sink(at: TableAt) -> Sink:
    made = open_table(at)
    made.prepare(SCHEMA)
    return made


def rows(offsets: Iterable[int], partition: int = 0, **more: Any) -> pa.Table:
    found = [
        {
            "id": one, "region": ["a b", "c/d", None, "ü%"][one % 4], "_topic": "orders",
            "_partition": partition, "_offset": one, "_timestamp": MOMENT, **more,
        }
        for one in offsets
    ]  # fmt: skip
    return pa.Table.from_pylist(found, schema=SCHEMA)


def written(sink: Sink, offsets: Iterable[int], partition: int = 0) -> list[File]:
    files = FileSet(sink.layout(1 << 20))
    files.add(rows(offsets, partition))
    return files.close()


def take(sink: Sink, batch: int, start: int, end: int, query: str = "q") -> bool:
    ranges = {AT: Range(start, end)}
    files = written(sink, range(start, end))
    return commit.settle(sink, query, batch, ranges, ranges, files)


def offsets(at: TableAt) -> list[int]:
    return sorted(open_table(at).arrow().column("_offset").to_pylist())


def paths(at: TableAt) -> set[str]:
    return {str(path) for path in Path(at.uri).rglob("part-*.parquet")}


def test_a_batch_is_taken_once(sink: Sink, at: TableAt) -> None:
    assert take(sink, 0, 5, 10)
    assert not take(sink, 0, 5, 10)
    assert take(sink, 1, 10, 20)
    assert offsets(at) == list(range(5, 20))
    state = open_table(at).state()
    assert state.covered == {AT: Range(5, 20)}
    assert state.batches == {"q": 1}
    # The files of the batch that was there already are gone again.
    assert paths(at) == set(open_table(at).files())


def test_every_commit_has_a_higher_number(sink: Sink) -> None:
    numbers = [sink.version()]
    for batch in range(3):
        take(sink, batch, batch * 5, batch * 5 + 5)
        numbers.append(sink.version())
    assert numbers == sorted(set(numbers))


def test_a_pipeline_of_another_name_doubles_nothing(sink: Sink, at: TableAt) -> None:
    take(sink, 0, 0, 5)
    renamed = open_table(dataclasses.replace(at, pipeline="other"))
    if at.sink.startswith("delta"):
        with pytest.raises(SinkRefused, match="has rows, but not of a pipeline 'other'"):
            take(renamed, 0, 0, 5)
    else:
        assert not take(renamed, 0, 0, 5)
    assert offsets(at) == list(range(5))


def test_a_table_of_another_kind_is_named(sink: Sink, at: TableAt) -> None:
    family = at.sink.removesuffix("-jar")
    for kind in {"delta", "parquet", "iceberg"} - {family}:
        with pytest.raises(SinkRefused, match=f"is a table of sink = '{family}', not '{kind}'"):
            open_table(dataclasses.replace(at, sink=kind))


def test_rows_that_none_can_have_still_move_the_end(sink: Sink, at: TableAt) -> None:
    take(sink, 0, 0, 5)
    ranges = {AT: Range(5, 9)}
    assert commit.settle(sink, "q", 1, ranges, ranges, [], {AT: 4})
    assert commit.settle(sink, "q", 2, {AT: Range(9, 10)}, {AT: Range(9, 10)}, [], {AT: 1})
    assert open_table(at).state().covered == {AT: Range(0, 10)}
    assert open_table(at).state().dropped == {AT: 5}
    assert offsets(at) == [0, 1, 2, 3, 4]


def test_offsets_that_do_not_continue_are_refused(sink: Sink) -> None:
    take(sink, 0, 0, 10)
    with pytest.raises(SinkRefused, match=r"begins at offset 11 of orders-0.*ends at 10"):
        commit.lacking(sink.state(), "q", 1, {AT: Range(11, 12)}, table="t")
    with pytest.raises(SinkRefused, match=r"batch 0 is recorded, but not with these offsets"):
        commit.lacking(sink.state(), "q", 0, {AT: Range(10, 12)}, table="t")
    # A new query that begins too early skips what is there.
    found = commit.lacking(sink.state(), "new", 0, {AT: Range(4, 12), OTHER: Range(3, 4)}, table="")
    assert found == {AT: Range(10, 12), OTHER: Range(3, 4)}


def test_of_two_drivers_one_commits(sink: Sink, at: TableAt) -> None:
    take(sink, 0, 0, 5)
    other = open_table(at)
    ranges = {AT: Range(5, 9)}
    files, theirs = written(sink, range(5, 9)), written(other, range(5, 9))
    for one in (sink, other):
        one.announce("q", ranges)
        one.state()
    step = Step("q", 1, ranges, {AT: Range(0, 9)})
    other.append(theirs, step)
    with pytest.raises(Busy):
        sink.append(files, step)
    assert not commit.settle(sink, "q", 1, ranges, ranges, files)
    assert offsets(at) == list(range(9))
    assert paths(at) == set(open_table(at).files())


def test_a_commit_between_look_and_commit_is_no_harm(sink: Sink, at: TableAt) -> None:
    """Another writer's commit of other partitions makes us look again, not give up."""
    take(sink, 0, 0, 5)
    other = open_table(at)
    ranges = {OTHER: Range(0, 3)}
    files = written(other, range(3), partition=1)
    commit.settle(other, "other", 0, ranges, ranges, files)
    assert take(sink, 1, 5, 9)
    assert open_table(at).state().covered == {AT: Range(0, 9), OTHER: Range(0, 3)}


def test_the_ledger_tells_what_each_commit_added(sink: Sink, at: TableAt) -> None:
    take(sink, 0, 0, 5)
    take(sink, 1, 5, 7)
    found = [(one.query, one.batch, one.rows, dict(one.ranges)) for one in open_table(at).ledger()]
    assert found == [("q", 0, 5, {AT: Range(0, 5)}), ("q", 1, 2, {AT: Range(5, 7)})]


def test_columns_are_added_and_old_rows_have_none(sink: Sink, at: TableAt) -> None:
    take(sink, 0, 0, 3)
    grown = sink.prepare(pa.schema([*SCHEMA, ("note", pa.string())]))
    assert grown.names[-1] == "note"
    take(sink, 1, 3, 5)
    table = open_table(at).arrow()
    assert table.column("note").null_count == 5
    assert offsets(at) == list(range(5))
    assert sink.prepare(SCHEMA).names == grown.names


@pytest.mark.parametrize("columns", [("region",), ("_day", "region")])
def test_partition_values_of_any_kind(at: TableAt, columns: tuple[str, ...]) -> None:
    at = dataclasses.replace(at, partition_by=columns)
    sink = open_table(at)
    schema = pa.schema([*SCHEMA, ("_day", pa.date32())])
    sink.prepare(schema)
    files = FileSet(sink.layout(1 << 20))
    days = [datetime.date(2026, 11, 16), None]
    data = rows(range(8)).to_pylist()
    given_rows = [{**one, "_day": days[one["id"] % 2]} for one in data]
    files.add(pa.Table.from_pylist(given_rows, schema=schema))
    ranges = {AT: Range(0, 8)}
    commit.settle(sink, "q", 0, ranges, ranges, files.close())
    found = open_table(at).arrow().select(schema.names).sort_by("_offset").to_pylist()
    assert found == given_rows


def test_retention_cuts_rows_and_beginning_together(sink: Sink, at: TableAt) -> None:
    take(sink, 0, 0, 10)
    sink.state()
    sink.cut(Step("retention", -1, {}, {AT: Range(6, 10)}))
    assert offsets(at) == [6, 7, 8, 9]
    assert open_table(at).state().covered == {AT: Range(6, 10)}
    assert open_table(at).state().batches == {"q": 0}


def test_retention_that_finds_no_row_moves_the_beginning_too(sink: Sink, at: TableAt) -> None:
    ranges = {AT: Range(0, 10)}
    commit.settle(sink, "q", 0, ranges, ranges, written(sink, [7, 8]))
    sink.state()
    sink.cut(Step("retention", -1, {}, {AT: Range(5, 10)}))
    assert offsets(at) == [7, 8]
    assert open_table(at).state().covered == {AT: Range(5, 10)}


def test_replacing_everything_keeps_the_state(sink: Sink, at: TableAt) -> None:
    take(sink, 0, 0, 10)
    files = written(sink, [3, 4])
    sink.announce("", [AT])
    sink.state()
    sink.replace(files, Step("rebuild", -1, {}, {AT: Range(0, 10)}), SCHEMA)
    assert offsets(at) == [3, 4]
    assert open_table(at).state().covered == {AT: Range(0, 10)}
    assert open_table(at).state().batches == {"q": 0}
    assert take(sink, 1, 10, 12)


def test_replacing_everything_keeps_partitions_and_keys(at: TableAt) -> None:
    at = dataclasses.replace(at, key=("id",), partition_by=("region",))
    sink = open_table(at)
    sink.prepare(SCHEMA)
    take(sink, 0, 0, 6)
    files = FileSet(sink.layout(1 << 20, whole=True))
    files.add(rows(range(4)))
    sink.announce("", [AT])
    sink.state()
    sink.replace(files.close(), Step("rebuild", -1, {}, {AT: Range(0, 6)}), SCHEMA)
    assert open_table(at).arrow().select(SCHEMA.names).sort_by("_offset") == rows(range(4))
    later = [{**one, "id": one["id"] - 4} for one in rows(range(6, 8)).to_pylist()]
    files = FileSet(sink.layout(1 << 20))
    files.add(pa.Table.from_pylist(later, schema=SCHEMA))
    ranges = {AT: Range(6, 8)}
    commit.settle(sink, "q", 1, ranges, ranges, files.close())
    found = {one["id"]: one["_offset"] for one in open_table(at).arrow().to_pylist()}
    assert found == {0: 0, 1: 1, 2: 6, 3: 7}


def test_vacuum_takes_what_crashes_left(sink: Sink, at: TableAt) -> None:
    take(sink, 0, 0, 5)
    orphan = written(sink, range(100))
    assert [Path(one).name for one in sink.vacuum(0, dry_run=True)] == [
        Path(one.path).name for one in orphan
    ]
    sink.vacuum(0, dry_run=False)
    assert offsets(at) == list(range(5))
    assert paths(at) == set(open_table(at).files())


def test_compaction_keeps_rows_and_state(at: TableAt) -> None:
    sink = open_table(at)
    sink.prepare(SCHEMA)
    for batch in range(6):
        take(sink, batch, batch * 3, batch * 3 + 3)
    assert sink.compact(1 << 20) == {"files_removed": 6, "files_added": 1}
    assert offsets(at) == list(range(18))
    assert open_table(at).state().covered == {AT: Range(0, 18)}
    assert take(sink, 6, 18, 20)
    assert len(open_table(at).files()) == 2


def test_compaction_of_partitions_of_any_name(at: TableAt) -> None:
    at = dataclasses.replace(at, partition_by=("region",))
    sink = open_table(at)
    sink.prepare(SCHEMA)
    names = [
        "a~b",
        "a b",
        "x=1/y",
        "%41",
        "1",
        "a'b",
        None,
        "日ü",
    ]
    for batch in range(2):
        ranges = {AT: Range(batch * 10, batch * 10 + len(names))}
        data = rows(range(batch * 10, batch * 10 + len(names))).to_pylist()
        files = FileSet(sink.layout(1 << 20))
        named = [{**one, "region": name} for one, name in zip(data, names, strict=True)]
        files.add(pa.Table.from_pylist(named, schema=SCHEMA))
        sink.announce("q", ranges)
        sink.state()
        sink.append(files.close(), Step("q", batch, ranges, ranges))
    done = sink.compact(1 << 20)
    assert done == {"files_removed": 2 * len(names), "files_added": len(names)}
    sink.vacuum(0, dry_run=False)
    found = open_table(at).arrow().sort_by("_offset").column("region").to_pylist()
    assert found == names * 2


def test_a_probe_leaves_nothing(at: TableAt) -> None:
    probe(at)
    left = [path.name for path in Path(at.uri).parent.iterdir()]
    assert [name for name in left if name != "iceberg.db"] == []


def test_a_probe_refuses_what_cannot_be_written(at: TableAt, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((SinkRefused, OSError)):
        probe(dataclasses.replace(at, uri=f"{tmp_path}/file/silver"))


def test_a_later_row_replaces_an_earlier_one(at: TableAt) -> None:
    at = dataclasses.replace(at, key=("id",))
    sink = open_table(at)
    sink.prepare(SCHEMA)

    def upsert(batch: int, start: int, ids: list[int | None]) -> None:
        files = FileSet(sink.layout(1 << 20))
        data = rows(range(start, start + len(ids))).to_pylist()
        named = [{**one, "id": id_} for one, id_ in zip(data, ids, strict=True)]
        files.add(pa.Table.from_pylist(named, schema=SCHEMA))
        ranges = {AT: Range(start, start + len(ids))}
        commit.settle(sink, "q", batch, ranges, ranges, files.close())

    upsert(0, 10, [1, 2, None])
    upsert(1, 13, [2, 3, None])
    found = {one["id"]: one["_offset"] for one in open_table(at).arrow().to_pylist()}
    assert found == {1: 10, 2: 13, 3: 14, None: 15}
    # Rows that are older than what is there, as a backfill brings them, change nothing.
    sink.announce("", [AT])
    files = FileSet(sink.layout(1 << 20))
    old = [{**one, "id": 2} for one in rows([4]).to_pylist()]
    files.add(pa.Table.from_pylist(old, schema=SCHEMA))
    sink.state()
    sink.merge(files.close(), Step("backfill", -1, {}, {AT: Range(4, 16)}))
    again = {one["id"]: one["_offset"] for one in open_table(at).arrow().to_pylist()}
    assert again == found
    assert open_table(at).state().covered == {AT: Range(4, 16)}


def test_delta_leaves_alone_what_only_the_jar_finds(tmp_path: Path) -> None:
    """The library would double the rows of files whose names are not escaped in the log."""
    at = TableAt(f"{tmp_path}/silver", "delta", "p", "silver", ("region",), fsync=False)
    sink = open_table(at)
    sink.prepare(SCHEMA)
    take(sink, 0, 0, 8)
    newest = max(Path(at.uri, "_delta_log").glob("*.json"))
    text = newest.read_text()
    assert "region=%C3%BC" in text
    newest.write_text(text.replace("region=%C3%BC", "region=ü"))
    sink = open_table(at)
    sink.state()
    keyed = open_table(dataclasses.replace(at, key=("id",)))
    cutting = Step("retention", -1, {}, {AT: Range(6, 8)})
    for work in (
        partial(sink.compact, 1),
        partial(sink.cut, cutting),
        partial(take, keyed, 1, 8, 9),
    ):
        with pytest.raises(SinkRefused, match="set sink = 'delta-jar'"):
            work()
    jar = open_table(dataclasses.replace(at, sink="delta-jar"))
    if jars.session() is None:
        with pytest.raises(SinkRefused, match="only Delta's jar can compact; set"):
            jar.compact(1)
    elif "delta-jar" in KINDS:
        jar.compact(1 << 20)
    assert offsets(at) == list(range(8))


def test_delta_skips_files_by_our_statistics(tmp_path: Path) -> None:
    at = TableAt(f"{tmp_path}/silver", "delta", "p", "silver", fsync=False)
    sink = open_table(at)
    sink.prepare(SCHEMA)
    take(sink, 0, 0, 5)
    (file,) = written(sink, range(7, 9))
    stats = json.loads(file.stats)
    assert stats["numRecords"] == 2
    assert stats["minValues"]["_offset"] == 7
    assert stats["maxValues"]["_offset"] == 8
    assert stats["minValues"]["_timestamp"] == "2026-11-16T12:00:00.001Z"
    assert stats["maxValues"]["_timestamp"] == "2026-11-16T12:00:00.002Z"


Steps = list[tuple[int, bool]]


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=8))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize("kind", [one for one in KINDS if one != "iceberg"])
def test_replays_never_double_and_never_lose(
    kind: str, tmp_path_factory: pytest.TempPathFactory, steps: Steps
) -> None:
    """Batches of any size, each perhaps replayed by a driver that knows nothing."""
    at = TableAt(f"{tmp_path_factory.mktemp('t')}/silver", kind, "p", "silver", fsync=False)
    sink = open_table(at)
    sink.prepare(SCHEMA)
    reached = 0
    for batch, (size, replayed) in enumerate(steps):
        for driver in [sink, open_table(at)][: 1 + replayed]:
            take(driver, batch, reached, reached + size)
        reached += size
    assert offsets(at) == list(range(reached))


def test_open_writers_are_bounded(tmp_path: Path) -> None:
    at = TableAt(f"{tmp_path}/silver", "delta", "p", "silver", ("region",), fsync=False)
    sink = open_table(at)
    sink.prepare(SCHEMA)
    files = FileSet(sink.layout(1 << 20))
    for turn in range(2):
        data = [{**one, "region": f"r{one['id']}"} for one in rows(range(100)).to_pylist()]
        files.add(pa.Table.from_pylist(data, schema=SCHEMA))
        assert len(files._open) <= 64, turn
    found = files.close()
    assert sum(one.rows for one in found) == 200
    assert {one.partition["region"] for one in found} == {f"r{number}" for number in range(100)}


def test_files_end_at_the_size_aimed_at(tmp_path: Path) -> None:
    at = TableAt(f"{tmp_path}/silver", "delta", "p", "silver", fsync=True)
    sink = open_table(at)
    sink.prepare(SCHEMA)
    files = FileSet(sink.layout(200_000))
    for turn in range(4):
        files.add(rows(range(turn * 140_000, (turn + 1) * 140_000)))
    found = files.close()
    assert len(found) == 4
    assert sum(one.rows for one in found) == 560_000


@pytest.mark.parametrize("by_jar", [one for one in KINDS if one.endswith("-jar")])
def test_a_jar_goes_on_with_a_table(tmp_path: Path, by_jar: str) -> None:
    """One that was written without it; back again only where the state is kept alike."""
    at = TableAt(f"{tmp_path}/lake/silver", by_jar.removesuffix("-jar"), "p", "silver", fsync=False)
    without = open_table(at)
    without.prepare(SCHEMA)
    take(without, 0, 0, 5)
    there = dataclasses.replace(at, sink=by_jar)
    assert open_table(there).state() == without.state()
    jar = open_table(there)
    jar.prepare(SCHEMA)
    assert not take(jar, 0, 0, 5)
    assert take(jar, 1, 5, 9)
    assert offsets(there) == list(range(9))
    assert [one.batch for one in jar.ledger()] == [0, 1]
    if by_jar == "delta-jar":
        with pytest.raises(SinkRefused, match="set sink = 'delta-jar' again"):
            open_table(at).state()
        return
    assert take(open_table(at), 2, 9, 12)
    assert offsets(there) == list(range(12))

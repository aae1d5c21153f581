"""Tables that hold what the log holds pass; any that do not fail, with the right offsets."""

from __future__ import annotations

import json
import random
import shutil
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable, write_deltalake

import pentalog
from pentalog.cli import verify as command
from pentalog.tables import job, pipeline, verification

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = """
[pipeline.sales]
from = "{server}"
topics = ["{topic}"]
into = "{into}"
decode = {{ format = "json", schema = "id BIGINT, amount DOUBLE" }}
rules = [{{ name = "not negative", expect = "amount >= 0", action = "drop" }}]
"""
PARTITIONS = 2
RECORDS = 300


@dataclass
class Sales:
    """A pipeline that has run: its file, and which record became what."""

    pipeline: pipeline.Pipeline
    kept: set[tuple[int, int]]
    dead: set[tuple[int, int]]

    def copied(self, where: Path) -> Sales:
        shutil.copytree(self.pipeline.into, where)
        return replace(self, pipeline=replace(self.pipeline, into=str(where)))

    def table(self, layer: str) -> str:
        return self.pipeline.table(layer).uri


def fill(server: str, topic: str) -> Sales:
    """Records of which some are poison, some dropped, some aborted; several batches each."""
    admin = AdminClient({"bootstrap.servers": server})
    for made in admin.create_topics([NewTopic(topic, PARTITIONS)]).values():
        made.result(30)
    sales = Sales(pipeline=None, kept=set(), dead=set())  # type: ignore[arg-type]
    producer = Producer({"bootstrap.servers": server, "transactional.id": topic})
    producer.init_transactions(30)

    def note(kind: str) -> object:
        def noted(error: object, message: object) -> None:
            assert error is None
            place = (message.partition(), message.offset())  # type: ignore[attr-defined]
            if kind == "kept":
                sales.kept.add(place)
            elif kind == "dead":
                sales.dead.add(place)

        return noted

    for number in range(10):
        producer.begin_transaction()
        aborted = number in (3, 7)
        for index in range(RECORDS // 10):
            amount = -1 if index == 4 else index / 4
            value = json.dumps({"id": index, "amount": amount}) if index != 9 else "poison"
            kind = "dropped" if index == 4 else "dead" if index == 9 else "kept"
            producer.produce(
                topic,
                value=value.encode(),
                partition=index % PARTITIONS,
                on_delivery=note("aborted" if aborted else kind),
            )
        producer.flush(30)
        if aborted:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    return sales


@pytest.fixture(scope="module")
def sales(
    spark: SparkSession, broker: pentalog.Broker, tmp_path_factory: pytest.TempPathFactory
) -> Sales:
    folder = tmp_path_factory.mktemp("sales")
    server, topic = broker.address("kafka"), f"sales-{uuid.uuid4().hex[:8]}"
    found = fill(server, topic)
    text = PIPELINE.format(server=server, topic=topic, into=folder / "sales")
    (folder / "pipeline.toml").write_text(text)
    found.pipeline = pipeline.load(folder / "pipeline.toml")["sales"]
    job.start(spark, found.pipeline, once=True).awaitTermination()
    return found


def test_what_is_right_passes(spark: SparkSession, sales: Sales) -> None:
    report = verification.verify(spark, sales.pipeline)
    assert report.problems == ()
    assert report.ok
    for one in report.partitions:
        # Ten transactions, each ended by a marker; two of them aborted.
        assert (one.start, one.records, one.control, one.aborted) == (0, 120, 10, 30)
        assert one.end == one.records + one.control + one.aborted
        assert (one.compacted, one.expired, one.waiting) == (0, 0, 0)
        assert one.bronze == one.records == one.silver + one.dead_letters + one.dropped
    assert {one.dropped for one in report.partitions} == {0, 8}
    assert {one.dead_letters for one in report.partitions} == {0, 8}


def found(report: verification.Report) -> set[tuple[str, str, int, int, int]]:
    return {(one.layer, one.kind, one.partition, one.start, one.end) for one in report.problems}


def row_at(uri: str, mark: str, partition: int, offset: int) -> pa.Table:
    filters = [(f"{mark}partition", "=", partition), (f"{mark}offset", "=", offset)]
    return DeltaTable(uri).to_pyarrow_table(filters=filters)


def with_value(row: pa.Table, name: str, value: object) -> pa.Table:
    place = row.schema.get_field_index(name)
    return row.set_column(
        place, row.schema.field(place), pa.array([value], row.schema.field(place).type)
    )


def test_any_tampering_is_named(spark: SparkSession, sales: Sales, tmp_path: Path) -> None:
    """Rows removed, doubled, changed, moved and invented at random, in every table."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    here = sales.copied(tmp_path / "tampered")
    bronze, silver, letters = (here.table(name) for name in ("bronze", "silver", "dead_letters"))
    both = sorted(sales.kept | sales.dead)
    # Apart from each other, so that two of them neither make one range nor meet at one offset.
    offsets = sorted({offset for _, offset in both if offset % 3 == 0})
    picked = [
        chance.choice([place for place in both if place[1] == offset])
        for offset in chance.sample(offsets, 5)
    ]
    expected: set[tuple[str, str, int, int, int]] = set()

    (p, o), (q, r), (s, t), (u, v), (w, x) = picked
    DeltaTable(bronze).delete(f"partition = {p} and offset = {o}")
    expected.add(("bronze", "missing", p, o, o + 1))
    write_deltalake(bronze, row_at(bronze, "", q, r), mode="append")
    expected.add(("bronze", "doubled", q, r, r + 1))
    DeltaTable(bronze).update(
        updates={"value": "arrow_cast('x', 'Binary')"},
        predicate=f"partition = {s} and offset = {t}",
    )
    expected.add(("bronze", "changed", s, t, t + 1))
    moved = with_value(row_at(bronze, "", u, v), "partition", 1 - u)
    DeltaTable(bronze).delete(f"partition = {u} and offset = {v}")
    write_deltalake(bronze, moved, mode="append")
    expected.add(("bronze", "missing", u, v, v + 1))
    # What lies at that offset of the other partition decides what a second row there is.
    there = (1 - u, v)
    other = "doubled" if there in sales.kept | sales.dead else "unexpected"
    dropped = row_at(bronze, "", *there).num_rows
    expected.add(("bronze", "doubled" if dropped > 1 else other, *there, v + 1))
    invented = with_value(row_at(bronze, "", w, x), "offset", 5000)
    write_deltalake(bronze, invented, mode="append")
    expected.add(("bronze", "beyond", w, 5000, 5001))

    (p, o), (q, r) = chance.sample(sorted(sales.kept), 2)
    DeltaTable(silver).update(
        updates={"amount": "amount + 0.25"}, predicate=f"_partition = {p} and _offset = {o}"
    )
    expected.add(("silver", "changed", p, o, o + 1))
    DeltaTable(silver).delete(f"_partition = {q} and _offset = {r}")
    expected.add(("silver", "missing", q, r, r + 1))
    (p, o) = chance.choice(sorted(sales.dead))
    write_deltalake(letters, row_at(letters, "", p, o), mode="append")
    expected.add(("dead_letters", "doubled", p, o, o + 1))

    assert found(verification.verify(spark, here.pipeline)) == expected


def test_neighbours_are_one_range(spark: SparkSession, sales: Sales, tmp_path: Path) -> None:
    here = sales.copied(tmp_path / "cut")
    DeltaTable(here.table("bronze")).delete("partition = 1 and offset >= 100")
    DeltaTable(here.table("dead_letters")).delete("true")
    report = verification.verify(spark, here.pipeline)
    assert not report.ok
    lost = [one for one in report.problems if one.layer == "bronze"]
    assert all(one.kind == "missing" and one.partition == 1 for one in lost)
    # Markers and aborted records between them were never rows.
    assert [one.end - one.start for one in lost].count(15) >= 2
    letters = {one for one in found(report) if one[0] == "dead_letters"}
    assert letters == {("dead_letters", "missing", p, o, o + 1) for p, o in sales.dead}
    assert "in the log, not in the table" in str(lost[0])


def test_a_ledger_that_claims_too_much_is_named(
    spark: SparkSession, sales: Sales, tmp_path: Path
) -> None:
    from deltalake import CommitProperties, Transaction

    here = sales.copied(tmp_path / "claims")
    uri, topic = here.table("silver"), here.pipeline.topics[0]
    names = [f"pentalog:sales:{topic}/0:end"]
    assert DeltaTable(uri).transaction_version(names[0]) is not None
    empty = DeltaTable(uri).to_pyarrow_table().slice(0, 0)
    claims = CommitProperties(app_transactions=[Transaction(name, 10_000) for name in names])
    write_deltalake(uri, empty, mode="append", commit_properties=claims)
    kinds = {(one.layer, one.kind) for one in verification.verify(spark, here.pipeline).problems}
    assert ("silver", "gone") in kinds
    assert ("bronze", "behind") in kinds


def test_the_command_says_it_in_a_line(
    spark: SparkSession, sales: Sales, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import typer

    here = sales.copied(tmp_path / "told")
    server, topic = here.pipeline.servers, here.pipeline.topics[0]
    file = tmp_path / "told.toml"
    file.write_text(PIPELINE.format(server=server, topic=topic, into=tmp_path / "told"))
    command.verify(file, "sales", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    assert sum(one["records"] for one in told["partitions"]) == 240
    partition, offset = min(sales.dead)
    DeltaTable(here.table("dead_letters")).delete(f"offset = {offset}")
    with pytest.raises(typer.Exit) as ended:
        command.verify(file)
    assert ended.value.exit_code == 1
    assert (
        f"dead_letters: {topic}/{partition} offset {offset}: in the log" in capsys.readouterr().out
    )
    with pytest.raises(typer.Exit) as ended:
        command.verify(file, "nothing")
    assert ended.value.exit_code == 2

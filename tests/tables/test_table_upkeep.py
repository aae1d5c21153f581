"""Tables over time: earlier records, other columns, second chances, and tidying up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lake import audit, declare, make_topic, orders, places, produce, run, table

import pentalog
from pentalog.model.types import Partition
from pentalog.tables import maintenance, repair, replays
from pentalog.tables.sinks import Range, SinkRefused, open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def server(broker: pentalog.Broker) -> str:
    return broker.address("kafka")


def test_backfill_takes_what_lies_before_and_nothing_twice(
    spark: SparkSession, server: str, topic: str, tmp_path: Path
) -> None:
    make_topic(server, topic, 1)
    produce(server, topic, [*orders(0, 30), b"bad"])
    at = Partition(topic, 0)
    declared = declare(
        server, topic, tmp_path / "lake", starting={topic: {"0": 25}}, batch_rows_max=10
    )
    run(spark, declared)
    assert [offset for _, offset in places(declared, "bronze")] == list(range(25, 31))
    told: list[Mapping[str, Any]] = []
    added = repair.backfill(spark, declared, f'{{"{topic}": {{"0": 8}}}}', told.append)
    assert added == {at: Range(8, 25)}
    assert [(one["batch"], one["rows"], one["lag"]) for one in told] == [(1, 10, 7), (2, 7, 0)]
    assert told[0]["eta_s"] == pytest.approx(0.7 * told[0]["batch_ms"] / 1000, abs=1)
    assert told[1]["eta_s"] == 0
    assert [offset for _, offset in places(declared, "bronze")] == list(range(8, 31))
    assert repair.backfill(spark, declared, "earliest") == {at: Range(0, 8)}
    assert repair.backfill(spark, declared, "earliest") == {}
    audit(declared, 31)
    produce(server, topic, orders(31, 5))
    run(spark, declared)
    audit(declared, 36)


def test_dead_letters_get_a_second_chance(
    spark: SparkSession, server: str, topic: str, tmp_path: Path
) -> None:
    make_topic(server, topic, 1)
    produce(server, topic, [*orders(0, 5), '{"id": 5, "amount": "6.5"}', b"never"])
    run(spark, strict := declare(server, topic, tmp_path / "lake"))
    assert len(places(strict, "dead_letters")) == 2
    lenient = declare(
        server, topic, tmp_path / "lake",
        decode={"format": "json", "schema": "id BIGINT, amount STRING"},
    )  # fmt: skip
    assert repair.replay_dead_letters(spark, lenient) == {"moved": 1, "dropped": 0, "left": 1}
    audit(lenient, 7)
    (row,) = [one for one in table(lenient, "silver").to_pylist() if one["id"] == 5]
    assert row["amount"] == 6.5
    assert repair.replay_dead_letters(spark, lenient) == {"moved": 0, "dropped": 0, "left": 1}
    audit(lenient, 7)
    run(spark, lenient)
    audit(lenient, 7)


def test_a_second_chance_that_is_cut_short(
    spark: SparkSession, server: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes next finishes it: letters that came since stay, and none moves twice."""
    make_topic(server, topic, 1)
    strict = declare(server, topic, tmp_path / "lake")
    text = '{"id": 5, "amount": "6.5"}'
    lenient = declare(
        server, topic, tmp_path / "lake",
        decode={"format": "json", "schema": "id BIGINT, amount STRING"},
    )  # fmt: skip

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    def replay_is_cut_short() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(replays, "finish", die)
            with pytest.raises(KeyboardInterrupt):
                repair.replay_dead_letters(spark, lenient)

    produce(server, topic, [*orders(0, 5), text, b"never"])
    run(spark, strict)
    replay_is_cut_short()
    with pytest.raises(SinkRefused, match="a replay of dead letters was cut short"):
        maintenance.vacuum(strict, retention_ms=0)
    produce(server, topic, [text, b"bad"])
    run(spark, strict)
    audit(strict, 9)
    assert [offset for _, offset in places(strict, "dead_letters")] == [6, 7, 8]
    maintenance.vacuum(strict, retention_ms=0)

    replay_is_cut_short()
    assert repair.rebuild(spark, strict) == {"silver": 5, "dead_letters": 4}
    assert repair.replay_dead_letters(spark, lenient) == {"moved": 2, "dropped": 0, "left": 2}
    audit(lenient, 9)


def test_rebuild_makes_silver_by_the_file_as_it_is_now(
    spark: SparkSession, server: str, topic: str, tmp_path: Path
) -> None:
    make_topic(server, topic, 1)
    produce(server, topic, [*orders(0, 20), b"bad"])
    run(spark, declare(server, topic, tmp_path / "lake"))
    changed = declare(
        server, topic, tmp_path / "lake",
        columns={"name": "concat('n', id)", "amount": "cast(amount as string)"},
        rules=[{"expect": "amount <> '1.0'", "action": "drop"}],
    )  # fmt: skip
    assert repair.rebuild(spark, changed) == {"silver": 19, "dead_letters": 1}
    rows = table(changed, "silver").sort_by("_offset").to_pylist()
    assert [one["name"] for one in rows][:5] == ["n0", "n1", "n2", "n3", "n5"]
    assert rows[1]["amount"] == "0.25"
    assert sum(open_table(changed.table("silver")).state().dropped.values()) == 1
    produce(server, topic, orders(21, 3))
    run(spark, changed)
    assert len(places(changed, "silver")) == 22


def test_retention_compaction_and_vacuum(
    spark: SparkSession, server: str, topic: str, tmp_path: Path
) -> None:
    make_topic(server, topic, 1)
    now_ms = int(time.time() * 1000)
    produce(server, topic, orders(0, 10), timestamp=now_ms - 3 * 86_400_000)
    produce(server, topic, orders(10, 10), timestamp=now_ms - 3_600_000)
    declared = declare(server, topic, tmp_path / "lake", batch_rows_max=5, retention="2 days")
    run(spark, declared)
    at = Partition(topic, 0)
    # The first batch already looked: what came later is cut now.
    assert maintenance.retain(spark, declared, now_ms=now_ms) == {at: 10}
    for layer in ("bronze", "silver"):
        assert [offset for _, offset in places(declared, layer)] == list(range(10, 20))
        assert open_table(declared.table(layer)).state().covered == {at: Range(10, 20)}
    done = maintenance.compact(declared)
    assert done["bronze"]["files_removed"] >= 2
    assert len(open_table(declared.table("bronze")).files()) == 1
    maintenance.vacuum(declared, retention_ms=0)
    left = {str(one) for one in Path(declared.table("bronze").uri).rglob("*.parquet")}
    assert left == set(open_table(declared.table("bronze")).files())
    produce(server, topic, orders(20, 5))
    run(spark, declared)
    assert [offset for _, offset in places(declared, "silver")] == list(range(10, 25))
    assert set(maintenance.drop(declared)) == {"bronze", "silver", "dead_letters"}
    assert not Path(declared.checkpoint).exists()
    assert not open_table(declared.table("bronze")).exists()


def test_nothing_to_work_on_is_said(
    spark: SparkSession, server: str, topic: str, tmp_path: Path
) -> None:
    declared = declare(server, topic, tmp_path / "lake")
    with pytest.raises(SinkRefused, match="is no table yet; run the pipeline orders first"):
        repair.rebuild(spark, declared)


def test_backfill_of_partitions_that_need_more_than_others(
    spark: SparkSession, server: str, topic: str, tmp_path: Path
) -> None:
    """One is whole after the first chunk, and is not read again with the others."""
    make_topic(server, topic)
    for partition, count in enumerate((8, 30)):
        produce(server, topic, orders(0, count), partition=partition)
    declared = declare(
        server, topic, tmp_path / "lake", starting={topic: {"0": 5, "1": 25}}, batch_rows_max=10
    )
    run(spark, declared)
    added = repair.backfill(spark, declared, "earliest")
    assert added == {Partition(topic, 0): Range(0, 5), Partition(topic, 1): Range(0, 25)}
    audit(declared, 38)

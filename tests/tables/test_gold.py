"""Windows over silver: written once each, made anew, and proved."""

from __future__ import annotations

import dataclasses
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable, write_deltalake
from lake import audit, declare, forget_last_commit, make_topic, orders, produce, run, table

import pentalog
from pentalog.tables import repair, verification
from pentalog.tables.pipeline import Pipeline
from pentalog.tables.windows import WindowProblem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_gold_windows_and_rebuild(
    spark: SparkSession, broker: pentalog.Broker, topic: str, tmp_path: Path
) -> None:
    server = broker.address("kafka")
    make_topic(server, topic, 1)
    minute = 60_000
    first = (int(time.time() * 1000) - 3_600_000) // minute * minute
    for number in range(6):
        produce(server, topic, orders(number * 10, 10), timestamp=first + number * minute)
    gold = {
        "per_minute": {
            "window": "1 minute",
            "watermark": "1 minute",
            "by": ["kind"],
            "aggregates": {"n": "count(*)", "total": "sum(amount)"},
        }
    }
    declared = declare(
        server, topic, tmp_path / "lake", gold=gold, batch_rows_max=20,
        columns={"id": "id", "amount": "amount", "kind": "if(id % 2 = 0, 'even', 'odd')"},
    )  # fmt: skip
    run(spark, declared)

    def windows() -> dict[tuple[int, str], tuple[int, float]]:
        rows = table(declared, "gold/per_minute").to_pylist()
        found = {
            (int(one["window_start"].timestamp() * 1000 - first) // minute, one["kind"]): (
                one["n"],
                one["total"],
            )
            for one in rows
        }
        assert len(found) == len(rows)
        return {key: found[key] for key in found if key[0] >= 0}

    def expected(minutes: int) -> dict[tuple[int, str], tuple[int, float]]:
        return {
            (number, kind): (5, sum(range(number * 10 + odd, number * 10 + 10, 2)) / 4)
            for number in range(minutes)
            for odd, kind in enumerate(("even", "odd"))
        }

    done = len(windows()) // 2
    assert 3 <= done <= 5
    assert windows() == expected(done)
    forget_last_commit(declared, "gold-per_minute")
    for number in range(6, 9):
        produce(server, topic, orders(number * 10, 10), timestamp=first + number * minute)
    produce(server, topic, orders(1000, 7), timestamp=first - 10 * minute)
    run(spark, declared)
    # Those were too late for the stream; a rebuild knows them from the beginning.
    assert table(declared, "gold/per_minute").num_rows == len(windows())
    check_windows(spark, declared, tmp_path / "tampered", len(windows()))
    repair.rebuild(spark, declared)
    assert table(declared, "gold/per_minute").num_rows == len(windows()) + 2
    rebuilt = len(windows()) // 2
    assert windows() == expected(rebuilt)
    for number in range(9, 12):
        produce(server, topic, orders(number * 10, 10), timestamp=first + number * minute)
    run(spark, declared)
    assert len(windows()) // 2 > rebuilt
    assert windows() == expected(len(windows()) // 2)
    audit(declared, 127)


def check_windows(spark: SparkSession, declared: Pipeline, copy: Path, count: int) -> None:
    """They are proved; windows that are removed, changed or doubled are named."""
    report = verification.verify(spark, declared)
    assert report.problems == ()
    assert [(one.windows, one.not_compared) for one in report.gold] == [(count, "")]
    shutil.copytree(declared.into, copy)
    tampered = dataclasses.replace(declared, into=str(copy))
    gold = DeltaTable(tampered.table("gold/per_minute").uri)
    rows = gold.to_pyarrow_table().sort_by([("window_start", "ascending"), ("kind", "ascending")])
    starts = [str(one)[:19] for one in rows.column("window_start").to_pylist()]
    write_deltalake(gold.table_uri, rows.slice(0, 1), mode="append")
    gold.update_incremental()
    gold.delete(f"window_start = '{starts[2]}' and kind = 'odd'")
    where = f"window_start = '{starts[4]}' and kind = 'even'"
    gold.update(updates={"total": "total + 0.25"}, predicate=where)
    found = {
        (one.kind, one.window_start, one.by)
        for one in verification.verify(spark, tampered).problems
        if isinstance(one, WindowProblem)
    }
    assert found == {
        ("doubled", starts[0], '{"kind":"even"}'),
        ("missing", starts[2], '{"kind":"odd"}'),
        ("changed", starts[4], '{"kind":"even"}'),
    }

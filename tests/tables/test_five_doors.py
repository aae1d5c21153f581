"""Records through every door become tables in which each is once, and that is proved."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from doors import WRITERS
from lake import make_topic, run, table
from topic_samples import compacted

import pentalog
from pentalog.protocols import PROTOCOLS
from pentalog.tables import pipeline, verification

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 200_000 if "PENTALOG_TORTURE" in os.environ else 50_000
PARTITIONS = 3
POISON_EVERY = 1000
ABORTED = 500
HOUR = "2026-03-04T05:{:02}:00Z"
LATE = "2026-01-01T00:00:00Z"
PIPELINES = """
[pipeline.orders]
from = "{server}"
topics = ["orders"]
into = "{into}/orders"
decode = {{ format = "json", schema = "id BIGINT, amount DOUBLE, at TIMESTAMP", infer = true }}
event_time = "at"
fsync = false
batch_rows_max = {rows}

[pipeline.orders.gold.per_minute]
window = "1 minute"
watermark = "10 minutes"
aggregates = {{ orders = "count(*)", amount = "sum(amount)" }}

[pipeline.customers]
from = "{server}"
topics = ["customers"]
into = "{into}/customers"
decode = {{ format = "json", schema = "name STRING, version BIGINT" }}
key = ["name"]
fsync = false
"""


def values(first: int, count: int) -> list[bytes]:
    """Orders of an hour; some are late by months, some are no JSON at all."""
    found = []
    for number in range(first, first + count):
        if number % POISON_EVERY == 7:
            found.append(b"{poison %d" % number)
            continue
        at = LATE if number % POISON_EVERY == 11 else HOUR.format(number * 60 // RECORDS)
        order = {"id": number, "amount": number % 100 / 4, "at": at}
        if number >= RECORDS // 2:
            order["currency"] = "EUR"
        found.append(json.dumps(order).encode())
    return found


@pytest.fixture(scope="module")
def broker() -> Iterator[pentalog.Broker]:
    """One that compacts all the time."""
    with pentalog.Broker(housekeeping_interval_ms=200) as started:
        yield started


def abort_some(server: str) -> None:
    producer = Producer({"bootstrap.servers": server, "transactional.id": "aborting"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(ABORTED):
        producer.produce("orders", b"never", partition=number % PARTITIONS)
    producer.flush(30)
    producer.abort_transaction(30)


def change_customers(server: str, versions: range) -> None:
    producer = Producer({"bootstrap.servers": server, "linger.ms": 0})
    for version in versions:
        for number in range(50):
            value = json.dumps({"name": f"c{number}", "version": version})
            producer.produce("customers", value, key=f"c{number}")
        assert producer.flush(30) == 0


@pytest.mark.timeout(900)
def test_every_door_into_one_table(
    spark: SparkSession, broker: pentalog.Broker, tmp_path: Path
) -> None:
    server = broker.address("kafka")
    doors = [name for name in WRITERS if any(one.name == name for one in PROTOCOLS)]
    assert {one.name for one in PROTOCOLS} == set(doors), "a door is not tested"
    make_topic(server, "orders", PARTITIONS)
    policy = {"cleanup.policy": "compact", "segment.bytes": "2048",
              "min.cleanable.dirty.ratio": "0.01"}  # fmt: skip
    admin = AdminClient({"bootstrap.servers": server})
    admin.create_topics([NewTopic("customers", 1, config=policy)])["customers"].result(30)
    file = tmp_path / "pipelines.toml"
    file.write_text(PIPELINES.format(server=server, into=tmp_path, rows=RECORDS * 2 // 3))
    pipelines = pipeline.load(file)
    orders, customers = pipelines["orders"], pipelines["customers"]

    share = RECORDS // len(doors) // 2
    for half in range(2):
        for number, door in enumerate(doors):
            first = half * RECORDS // 2 + number * share
            WRITERS[door](broker, "orders", PARTITIONS, values(first, share))
        abort_some(server)
        change_customers(server, range(half * 40, half * 40 + 40))
        run(spark, orders)
        run(spark, customers)
        # Less than a tenth of what was written.
        compacted(broker.data, "customers", bytes_max=20_000)

    check_orders(orders, doors)
    found = table(customers, "silver").to_pylist()
    assert {one["name"]: one["version"] for one in found} == {f"c{n}": 79 for n in range(50)}

    report = verification.verify(spark, orders)
    assert report.problems == ()
    assert sum(one.records for one in report.partitions) == RECORDS
    assert sum(one.aborted for one in report.partitions) == 2 * ABORTED
    assert sum(one.dead_letters for one in report.partitions) == RECORDS // POISON_EVERY
    assert [(one.windows > 0, one.not_compared) for one in report.gold] == [(True, "")]
    report = verification.verify(spark, customers)
    assert report.problems == ()
    assert sum(one.compacted for one in report.partitions) > 1000

    lost = RECORDS * 2 // 3
    silver = DeltaTable(orders.table("silver").uri)
    silver.delete(f"id = {lost}")
    # Gold has no part in it, and would take as long as all else.
    (problem,) = verification.verify(spark, dataclasses.replace(orders, gold=())).problems
    bronze = table(orders, "bronze")
    here = pc.match_substring(bronze.column("value"), f'"id": {lost},')
    (row,) = bronze.filter(here).select(["partition", "offset"]).to_pylist()
    assert (problem.layer, problem.kind) == ("silver", "missing")
    assert (problem.partition, problem.start) == (row["partition"], row["offset"])
    assert problem.end == problem.start + 1


def check_orders(orders: pipeline.Pipeline, doors: list[str]) -> None:
    """Every value once, in the right table, by libraries other than Spark."""
    good = {n for n in range(RECORDS) if n % POISON_EVERY != 7}
    silver = table(orders, "silver")
    ids = silver.column("id").to_pylist()
    assert len(ids) == len(good)
    assert set(ids) == good
    euros = silver.filter(pc.field("currency") == "EUR").column("id").to_pylist()
    assert set(euros) == {n for n in good if n >= RECORDS // 2}
    letters = table(orders, "dead_letters")
    assert letters.num_rows == RECORDS // POISON_EVERY
    assert set(letters.column("reason").to_pylist()) == {"the value is not JSON"}
    bronze = table(orders, "bronze").group_by("door").aggregate([([], "count_all")]).to_pylist()
    counts = {one["door"]: one["count_all"] for one in bronze}
    assert counts == dict.fromkeys(doors, RECORDS // len(doors))
    gold = table(orders, "gold/per_minute").to_pylist()
    # Rows that were late by months came when their window had been closed, all but the first half.
    assert sum(one["orders"] for one in gold) < len(good)
    assert sum(one["orders"] for one in gold) > len(good) // 2

"""Pipelines for tests: topics filled, run to their end, and looked at without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from pentalog.tables import pipeline
from pentalog.tables.pipeline import Pipeline
from pentalog.tables.runner import Runner
from pentalog.tables.sinks import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = {"format": "json", "schema": "id BIGINT, amount DOUBLE"}


def make_topic(server: str, topic: str, partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": server})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(30)


def produce(server: str, topic: str, values: Iterable[bytes | str | None], **more: Any) -> None:
    """Values by turns to all partitions, and nothing lost."""
    producer = Producer({"bootstrap.servers": server, "linger.ms": 5})
    failed: list[Any] = []
    for number, value in enumerate(values):
        producer.produce(
            topic, value, f"k{number}", on_delivery=lambda error, _: error and failed.append(error),
            **more,
        )  # fmt: skip
        producer.poll(0)
    producer.flush(60)
    assert failed == []


def orders(first: int, count: int) -> list[str]:
    return [json.dumps({"id": one, "amount": one / 4}) for one in range(first, first + count)]


def declare(server: str, topic: str, into: Path | str, **keys: Any) -> Pipeline:
    given = {"from": server, "topics": [topic], "into": str(into), "fsync": False, **keys}
    given.setdefault("decode", ORDERS)
    return pipeline.parse({"pipeline": {"orders": given}})["orders"]


def run(spark: SparkSession, declared: Pipeline) -> list[Mapping[str, Any]]:
    """Up to the present end; what was reported of every batch."""
    told: list[Mapping[str, Any]] = []
    assert Runner(spark, [declared], once=True, report=told.append).run()
    return told


def table(declared: Pipeline, layer: str) -> pa.Table:
    """The rows of a table by the format's own library."""
    return open_table(declared.table(layer)).arrow()


def places(declared: Pipeline, layer: str) -> list[tuple[int, int]]:
    """Where the rows of a table come from, sorted; twice if they are there twice."""
    mark = "_" if layer == "silver" else ""
    rows = table(declared, layer).select([f"{mark}partition", f"{mark}offset"])
    return sorted((one[f"{mark}partition"], one[f"{mark}offset"]) for one in rows.to_pylist())


def audit(declared: Pipeline, records: int) -> None:
    """Every record once in bronze, and once in silver or the dead letters; nothing else."""
    bronze = places(declared, "bronze")
    assert len(bronze) == records
    assert len(set(bronze)) == records
    assert sorted(places(declared, "silver") + places(declared, "dead_letters")) == bronze
    covered = [open_table(declared.table(layer)).state().covered for layer in pipeline.LAYERS]
    assert covered[0] == covered[1] == covered[2]
    assert sum(one.end - one.start for one in covered[0].values()) == records


def forget_last_commit(declared: Pipeline, query: str = "ingest") -> int:
    """The moment after the tables' commit and before Spark's: the batch that will run again."""
    folder = Path(declared.checkpoint) / query
    last = max(int(one.name) for one in (folder / "commits").iterdir() if one.name.isdecimal())
    planned = max(int(one.name) for one in (folder / "offsets").iterdir() if one.name.isdecimal())
    assert planned == last, "a newer plan would run instead"
    (folder / "commits" / str(last)).unlink()
    (folder / "commits" / f".{last}.crc").unlink(missing_ok=True)
    return last

"""Avro values into columns: one that its column cannot hold is a dead letter, and only that one."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from pentalog.tables import avro
from pentalog.tables.schema import as_arrow

SCHEMA = {
    "type": "record", "name": "Payment",
    "fields": [
        {"name": "price",
         "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
        {"name": "count", "type": "int"},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "at", "type": ["null", {"type": "int", "logicalType": "time-millis"}]},
    ],
}  # fmt: skip


def written(price: bytes, count: int) -> bytes:
    """As a producer writes it whose schema is wider than ours."""
    wider: dict[str, Any] = {
        "type": "record", "name": "Payment",
        "fields": [
            {"name": name, "type": kind} for name, kind in
            (("price", "bytes"), ("count", "long"), ("id", "string"), ("at", ["null", "int"]))
        ],
    }  # fmt: skip
    file = io.BytesIO()
    values = {"price": price, "count": count, "id": "a-b", "at": 5}
    fastavro.schemaless_writer(file, fastavro.parse_schema(wider), values)
    return file.getvalue()


def decoded(values: list[bytes]) -> list[dict[str, Any]]:
    kind = StructType().add("value", "binary")
    kind = kind.add("_decoded", avro.spark_schema(json.dumps(SCHEMA))).add("_reason", StringType())
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])
    (found,) = avro._task(json.dumps(SCHEMA), 0, as_arrow(kind))(iter([batch]))
    return list(found.to_pylist())


def test_values_that_do_not_fit_are_given_up_alone() -> None:
    good = {"price": Decimal("1.25"), "count": 3, "id": "a-b", "at": 5}
    rows = decoded(
        [written(b"\x7d", 3), written(b"\x7f" * 8, 3), written(b"\x7d", 1 << 40), written(b"}", 3)]
    )
    assert [one["_decoded"] for one in rows] == [good, None, None, good]
    reasons = [one["_reason"] for one in rows]
    assert reasons[0] is reasons[3] is None
    for reason in reasons[1:3]:
        assert reason.startswith("the value does not fit its column: ")

"""The session everything runs in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_results_do_not_depend_on_the_machine(spark: SparkSession) -> None:
    row = spark.sql("select current_timezone() as zone, timestamp_millis(0) as moment").first()
    assert row is not None
    assert row.zone == "UTC"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"

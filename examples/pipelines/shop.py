"""What the pipeline `orders` of shop.toml does to its rows beside the file's own columns."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def silver(rows: DataFrame) -> DataFrame:
    return rows.withColumn("size", f.when(f.col("amount") >= 100, "large").otherwise("small"))

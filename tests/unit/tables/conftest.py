"""A Spark session with jars, for tables that are written by them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _jars() -> Iterator[None]:
    """Only where the environment names jars: `PENTALOG_TABLE_JARS`, with commas."""
    jars = os.environ.get("PENTALOG_TABLE_JARS")
    if not jars:
        yield
        return
    from pentalog.tables.jars import DELTA
    from pentalog.tables.session import session

    with_delta = DELTA.settings if "delta" in os.environ["PENTALOG_TABLE_KINDS"] else {}
    settings = {"spark.jars": jars, "spark.databricks.delta.snapshotPartitions": "2"}
    made = session(master="local[2]", quick=True, settings={**settings, **with_delta})
    made.sparkContext.setLogLevel("ERROR")
    yield
    made.stop()

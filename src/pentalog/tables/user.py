"""The Spark session of a Python user, with topics and tables in its catalog."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from pentalog.tables import jars, pipeline
from pentalog.tables.catalog import Catalog, Places
from pentalog.tables.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark(
    server: str = "",
    *,
    data: str | PathLike[str] | None = None,
    config: str | PathLike[str] | None = None,
    master: str | None = None,
    quick: bool = False,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session of this process, knowing `format("pentalog")`, `topic.NAME` and `table.NAME`.

    spark = pentalog.spark("127.0.0.1:9092", config="pipeline.toml")
    spark.sql("select count(*) from topic.orders").show()

    Topics are those of `server`, or of the data directory `data`, or of what the pipelines in
    `config` read; their rows are always the present ones.  Tables are as they are now: call again
    for newer rows, and for topics made since.
    """
    pipelines = pipeline.load(Path(config)) if config is not None else {}
    directory = str(Path(data).resolve()) if data is not None else ""
    theirs = jars.reading_settings(pipelines.values())
    made = session(master=master, quick=quick, settings={**theirs, **(settings or {})})
    if server or directory or pipelines:
        Catalog(made, Places(server, directory, pipelines)).register_all()
    return made

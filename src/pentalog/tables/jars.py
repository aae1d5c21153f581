"""Jars that some kinds of tables are written with: what to tell Spark, and what to say without.

| `sink` | jars | Spark |
|---|---|---|
| delta-jar | `io.delta:delta-spark_4.2_2.13` and what it needs | 4.2 |
| iceberg-jar | Iceberg's `iceberg-spark-runtime-4.1_2.13` and `org.xerial:sqlite-jdbc` | any |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pentalog.tables.pipeline import Pipeline, PipelineError
from pentalog.tables.sinks.refusals import Busy, SinkRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LISTS: Final = ("spark.jars", "spark.jars.packages", "spark.jars.repositories")
"""Settings of which every pipeline's share counts."""
_EXTENSIONS: Final = "spark.sql.extensions"
_OF_JARS: Final = ("spark.jars", _EXTENSIONS, "spark.sql.catalog.")


class Kind(NamedTuple):
    """A kind of table that needs jars."""

    name: str
    packages: str
    classes: tuple[str, ...]
    settings: Mapping[str, str]
    instead: str


DELTA: Final = Kind(
    "delta-jar",
    "io.delta:delta-spark_4.2_2.13:4.4.0",
    ("io.delta.sql.DeltaSparkSessionExtension",),
    {
        _EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "pyspark 4.2, the only one that a jar of Delta's fits (pip install 'pyspark==4.2.*'), or"
    " sink = 'delta', which writes the same tables without a jar",
)
ICEBERG: Final = Kind(
    "iceberg-jar",
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0,org.xerial:sqlite-jdbc:3.53.4.0",
    ("org.apache.iceberg.jdbc.JdbcCatalog", "org.sqlite.JDBC"),
    {},
    "sink = 'iceberg', which writes the same tables without a jar",
)
_MISFITS: Final = (
    "NoSuchMethodError", "NoSuchFieldError", "NoClassDefFoundError", "ClassNotFoundException",
    "IncompatibleClassChangeError", "AbstractMethodError",
)  # fmt: skip
"""How Java says that jars were made for each other's other versions."""
_KINDS: Final = {kind.name: kind for kind in (DELTA, ICEBERG)}


def settings(pipelines: Iterable[Pipeline], jars: str = "") -> dict[str, str]:
    """What the one session of these pipelines is started with."""
    found: dict[str, str] = {"spark.jars": jars} if jars else {}
    asked: dict[str, str] = {}
    chosen = list(pipelines)
    for pipeline in chosen:
        for key, value in pipeline.spark.items():
            if key in _LISTS:
                found[key] = _joined(found.get(key, ""), value)
            elif asked.setdefault(key, value) != value:
                raise PipelineError(
                    f"pipeline.{pipeline.name}.spark: {key} = {value!r}, but another pipeline has"
                    f" {asked[key]!r}; they share one session, so give them the same or run them"
                    " apart"
                )
    for name in {one.sink for one in chosen if one.sink in _KINDS}:
        for key, value in _KINDS[name].settings.items():
            if key == _EXTENSIONS:
                asked[key] = _joined(asked.get(key, ""), value)
            asked.setdefault(key, value)
    return {**found, **asked}


def reading_settings(pipelines: Iterable[Pipeline]) -> dict[str, str]:
    """What a session that only reads their tables takes of them: memory and the like, no jars."""
    found: dict[str, set[str]] = {}
    for pipeline in pipelines:
        for key, value in pipeline.spark.items():
            found.setdefault(key, set()).add(value)
    return {
        key: values.pop()
        for key, values in found.items()
        if len(values) == 1 and not key.startswith(_OF_JARS)
    }


def session() -> SparkSession | None:
    """The session of this process."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkSession._instantiatedSession


def session_with(kind: Kind, uri: str) -> SparkSession:
    """The session of this process, if it has the jars."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    spark = session()
    if spark is None:
        raise SinkRefused(
            f"{uri}: sink = '{kind.name}' writes in a Spark session; run it by `pentalog table run`"
        )
    loader = _java(spark).java.lang.Thread.currentThread().getContextClassLoader()
    for name in kind.classes:
        try:
            loader.loadClass(name)
        except Py4JJavaError:
            raise SinkRefused(
                f"{uri}: Spark has no {name}; give the pipeline spark = {{ 'spark.jars.packages' ="
                f" '{kind.packages}' }}, or the files by --jars; or set {kind.instead}"
            ) from None
    return spark


@contextmanager
def refusing(
    kind: Kind, uri: str, spark: SparkSession, conflicts: tuple[str, ...]
) -> Iterator[None]:
    """What a jar throws, as what it means; `conflicts` are words of lost races."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        inner = getattr(error, "java_exception", None)
        first = (str(error) if inner is None else str(inner.toString())).strip().splitlines()[0]
        if any(word in first for word in conflicts):
            raise Busy(f"{uri}: {first}") from error
        if any(word in first for word in _MISFITS):
            raise SinkRefused(
                f"{uri}: the jar of sink = '{kind.name}' does not fit Spark {spark.version}:"
                f" {first[:200]}; use {kind.instead}"
            ) from error
        raise


def _joined(one: str, other: str) -> str:
    parts = [*filter(None, one.split(",")), *filter(None, other.split(","))]
    return ",".join(dict.fromkeys(part.strip() for part in parts))


def _java(spark: SparkSession) -> Any:
    return spark._jvm

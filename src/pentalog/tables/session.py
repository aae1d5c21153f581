"""The one way a Spark session is made, for the command line, for pipelines and for users."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pentalog.tables import archive, interpreter, masters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("pentalog.tables")
_SLOW_S: Final = 45
_MASTER: Final = "local[*]"
_LOOPBACK: Final = "127.0.0.1"
_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""What results depend on: set on any session, one that was already there included."""
_STARTING: Final[Mapping[str, str]] = {
    "spark.sql.globalTempDatabase": "table",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # For errors that name the line they come from, every expression would ask Java five times more.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
"""What counts only when a session is started, and what its user may want otherwise."""
_QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For runs of seconds: compiling less costs less than it saves."""


class NoSpark(Exception):
    """Spark cannot be used; the text says what to install."""


def session(
    *,
    master: str | None = None,
    name: str = "pentalog",
    quick: bool = False,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session of this process, started if there is none, with `format("pentalog")` in it.

    `master` is `local[*]` unless given: `local[N]`, `spark://HOST:PORT`, `k8s://...` or `yarn`.
    `quick` is for runs of seconds; it gives up speed in long ones.  `settings` are Spark's own and
    win over ours.
    """
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NoSpark(f"{error}; install it with: pip install 'pentalog[spark]'") from error
    given = dict(settings or {})
    builder = SparkSession.builder.appName(name)
    chosen = ""
    if SparkSession.getActiveSession() is None:
        chosen = master or given.pop("spark.master", _MASTER)
        why = masters.trouble(chosen, given)
        if why:
            raise NoSpark(why)
        for key, value in _starting(chosen, quick=quick, given=given).items():
            builder = builder.config(key, value)
    for key, value in {**_SETTINGS, **given}.items():
        builder = builder.config(key, value)
    # Every refused query would be logged with its whole Java trace, and is raised as well.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    try:
        with _said_if_slow(chosen):
            spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise NoSpark(f"Spark did not start; its own words are above: {error}") from error
    _register(spark)
    return spark


@contextmanager
def _said_if_slow(master: str) -> Iterator[None]:
    """YARN lets an application wait until it has room for it, and Spark waits without a word."""
    if master != "yarn":
        yield
        return
    text = (
        "master yarn: the application has not been started for %d s; does the cluster have room?"
        " `yarn application -list` and the page of the ResourceManager say what it waits for"
    )
    timer = threading.Timer(_SLOW_S, _log.warning, (text, _SLOW_S))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _starting(master: str, *, quick: bool, given: dict[str, str]) -> dict[str, str]:
    """Settings for a new session; also the environment its processes inherit."""
    local = masters.is_local(master)
    os.environ.setdefault("PYSPARK_PYTHON", interpreter.lean() if local else sys.executable)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join((*_QUICK, "-Xshare:auto")))
    chosen = {**_STARTING, "spark.master": master}
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        chosen["spark.driver.host"] = chosen["spark.driver.bindAddress"] = _LOOPBACK
        chosen["spark.sql.shuffle.partitions"] = str(_cores(master))
    java = [*archive.options(), *(_QUICK if quick else ())]
    theirs = given.pop("spark.driver.extraJavaOptions", "")
    chosen["spark.driver.extraJavaOptions"] = " ".join((*java, theirs)).strip()
    if quick:
        chosen["spark.executor.extraJavaOptions"] = " ".join(_QUICK)
    return chosen


def _cores(master: str) -> int:
    stated = master.removeprefix("local").strip("[]").partition(",")[0]
    return int(stated) if stated.isdecimal() else (os.cpu_count() or 1) if stated else 1


def _register(spark: SparkSession) -> None:
    from pentalog.tables.source import Pentalog

    spark.dataSource.register(Pentalog)

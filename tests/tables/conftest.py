"""One Spark session and one broker per worker process, and names that nobody else uses."""

from __future__ import annotations

import gc
import os
import sys
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import object_store
import pytest
from drivers import Java

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import apache_kafka
import brokers
import pentalog
from pentalog.tables import archive
from pentalog.tables.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's bridge to Java leaves its sockets to the garbage collector."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))


@pytest.fixture(scope="module", autouse=True)
def _no_sockets_left() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def _without_hypothesis(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Python's processes under Spark, of which there are many, need not load it.

    One of our dependencies does wherever it is installed, and that takes a third of their start.
    They do load the failpoints, by which tests let them die.
    """
    folder = tmp_path_factory.mktemp("lean")
    (folder / "hypothesis.py").write_text("raise ImportError('left out')\n")
    failpoints = Path(__file__).with_name("failpoints")
    paths = [str(folder), str(failpoints), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


@pytest.fixture(scope="session")
def dying_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file of points at which the next process that writes back to a topic dies."""
    path = tmp_path_factory.mktemp("dying") / "points"
    # Spark's workers have the environment that Java was started with.
    os.environ["FAILPOINT_FILE"] = str(path)
    yield path
    del os.environ["FAILPOINT_FILE"]


@pytest.fixture(scope="session")
def _java_installed() -> None:
    try:
        archive.java()
    except archive.NoJava as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def spark(_java_installed: None, dying_at: Path) -> Iterator[SparkSession]:
    """The session of this process; tests must not stop it."""
    archive.build()
    made = session(master="local[2]", name="tests", quick=True)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def java(_java_installed: None, dying_at: Path) -> Iterator[Java]:
    """A Java for drivers in processes of their own, one after the other."""
    archive.build()
    started = Java()
    yield started
    started.kill()


@pytest.fixture(scope="session")
def broker() -> Iterator[pentalog.Broker]:
    """A broker in this process: `address("kafka")` is its Kafka door, `data` its directory."""
    with pentalog.Broker() as started:
        yield started


@pytest.fixture(scope="session")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Apache Kafka."""
    try:
        settings = {"transaction.state.log.num.partitions": "3"}
        started = apache_kafka.start(
            tmp_path_factory.mktemp("apache"), settings=settings, is_brief=True
        )
    except (apache_kafka.JarsMissing, brokers.BrokerFailed) as why:
        pytest.skip(str(why))
    with brokers.stopping(started):
        yield started.address


@pytest.fixture(scope="session")
def options() -> Iterator[dict[str, str]]:
    """The `storage_options` of an S3 with a bucket `lake`."""
    with object_store.started() as given:
        yield given


@pytest.fixture
def topic() -> str:
    """The name of a topic, a group, a query or a transactional id of this test alone."""
    return f"tables-{uuid.uuid4().hex[:12]}"

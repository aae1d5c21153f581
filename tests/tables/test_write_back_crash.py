"""Whoever dies while a batch is written to a topic, the batch is there once in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drivers import Java, Victim
from lake import orders, produce
from test_write_back import VALUES, make_topic, records

import pentalog
from pentalog.clients.kafka import Cluster, init_producer
from pentalog.tables.shares import name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

ROWS = 120
TASKS = 3


@pytest.fixture
def write(spark: SparkSession, broker: pentalog.Broker, topic: str) -> Callable[[int], None]:
    """Write batch N of this test's query: the same rows whenever it is asked for."""
    server = broker.address("kafka")
    make_topic(server, topic, 2)

    def once(batch: int) -> None:
        rows = spark.sql(VALUES.format(ROWS, TASKS))
        rows.write.format("pentalog").mode("append").options(
            servers=server, topic=topic, query=topic, batch=batch
        ).save()

    return once


def counts(broker: pentalog.Broker, topic: str) -> Counter[Any]:
    return Counter(one.key() for one in records(broker.address("kafka"), topic, 2))


@pytest.mark.crash
def test_a_batch_that_was_cut_short_is_finished_once(
    write: Callable[[int], None], broker: pentalog.Broker, topic: str, dying_at: Path
) -> None:
    """At the other lines of a commit without Spark: `test_settlement`."""
    write(0)
    # With the one that commits dies the one that would clean up after it.
    dying_at.write_text("write-in-list write-abort")
    with pytest.raises(Exception, match=r".+"):
        write(1)
    assert dying_at.read_text() == "", "nobody came by"
    write(1)
    write(2)
    found = counts(broker, topic)
    assert len(found) == ROWS
    assert set(found.values()) == {3}


@pytest.mark.crash
def test_a_share_that_timed_out_is_written_again(
    write: Callable[[int], None], broker: pentalog.Broker, topic: str, dying_at: Path
) -> None:
    dying_at.write_text("write-share write-abort")
    with pytest.raises(Exception, match=r".+"):
        write(0)
    assert dying_at.read_text() == "", "nobody came by"
    with Cluster(broker.address("kafka")) as cluster:
        # As the broker does when a transaction stays open too long.
        init_producer(cluster, name_of(topic, 1))
    # None at all, if the third share, which is open, begins before the first in both partitions.
    assert len(counts(broker, topic)) < ROWS
    write(0)
    found = counts(broker, topic)
    assert len(found) == ROWS
    assert set(found.values()) == {1}


@pytest.mark.crash
def test_other_rows_in_place_of_a_lost_share_are_refused(
    spark: SparkSession,
    write: Callable[[int], None],
    broker: pentalog.Broker,
    topic: str,
    dying_at: Path,
) -> None:
    dying_at.write_text("write-share write-abort")
    with pytest.raises(Exception, match=r".+"):
        write(0)
    assert dying_at.read_text() == "", "nobody came by"
    with Cluster(broker.address("kafka")) as cluster:
        init_producer(cluster, name_of(topic, 1))
    before = counts(broker, topic)
    other = spark.sql(VALUES.format(ROWS + 9, TASKS)).write.format("pentalog").mode("append")
    with pytest.raises(Exception, match="its rows are not the same this time"):
        other.options(servers=broker.address("kafka"), topic=topic, query=topic, batch=0).save()
    # The third share was listed and open: its task committed it.
    assert all(count == 1 for count in counts(broker, topic).values())
    assert len(counts(broker, topic)) >= len(before)


_STREAM = """
    import sys
    from pentalog.tables.session import session
    servers, topic, checkpoint = sys.argv[1:]
    spark = session(master="local[2]", quick=True)
    rows = spark.readStream.format("pentalog").option("servers", servers)
    rows = rows.option("topics", topic).option("maxRowsPerTrigger", "100").load()
    query = rows.selectExpr("key", "value").writeStream.format("pentalog")
    query = query.option("servers", servers).option("topic", topic + "-out")
    query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    """


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_a_stream_is_written_once_whoever_is_killed(
    java: Java, dying_at: Path, topic: str, tmp_path: Path
) -> None:
    """The whole of Java, the broker, the driver: each while a batch is being committed."""
    victim = Victim(tmp_path)
    victim.start()
    try:
        make_topic(victim.address, topic, 2)
        make_topic(victim.address, f"{topic}-out", 2)
        produce(victim.address, topic, orders(0, 600))

        def driver() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(_STREAM),
                 victim.address, topic, str(tmp_path / "checkpoint")],
                env={**os.environ, **java.environment()}, start_new_session=True,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip

        for point, kill in (
            ("write-share", java.kill),
            ("write-in-list", victim.kill),
            ("write-list", None),
        ):
            dying_at.write_text(point)
            with driver() as running:
                wait_until_passed(dying_at, running)
                if kill is not None:
                    kill()
                os.killpg(running.pid, signal.SIGKILL)
            if kill == victim.kill:
                victim.start()
        with driver() as running:
            assert running.wait(300) == 0
        found = Counter(one.key() for one in records(victim.address, f"{topic}-out", 2))
    finally:
        victim.kill()
    assert found == Counter({b"k%d" % number: 1 for number in range(600)})


def wait_until_passed(points: Path, process: subprocess.Popen[bytes]) -> None:
    """Until somebody came by and died."""
    until = time.monotonic() + 600
    while points.read_text():
        assert process.poll() is None, "the driver ended too early"
        assert time.monotonic() < until, "nobody came by"
        time.sleep(0.01)

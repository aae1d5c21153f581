"""A real Spark cluster, master and two workers, reads and writes through the Kafka door."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from lake import make_topic, orders, produce
from test_write_back import records

import pentalog
from pentalog.tables import archive

HOME = Path(pyspark.__file__).parent
_DRIVER = """
import sys
from pathlib import Path
from pentalog.tables import pipeline, verification
from pentalog.tables.runner import Runner
from pentalog.tables.session import session

master, file, server, out = sys.argv[1:]
spark = session(master=master, quick=True, settings={
    "spark.executor.memory": "512m",
    # No task before both executors are there, however long the second one takes to start.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "200s",
})
(declared,) = pipeline.load(Path(file)).values()
assert Runner(spark, [declared], once=True, report=print).run()
report = verification.verify(spark, declared)
assert report.ok, report.problems
rows = spark.read.format("pentalog").options(servers=server, topics=declared.topics[0]).load()
rows.selectExpr("key", "value").write.format("pentalog").mode("append").options(
    servers=server, topic=out).save()
print("executors", spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1)
print("verified", sum(one.records for one in report.partitions))
spark.stop()
"""


def _started(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYSPARK_PYTHON": sys.executable,
    }
    with log.open("wb") as file:
        return subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
        )


def _wait_for(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found is not None:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"no {pattern!r} in {log}: {log.read_text()[-2000:]}")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A standalone cluster with two workers of one core each."""
    try:
        archive.java()
    except archive.NoJava as why:
        pytest.skip(str(why))
    where = "org.apache.spark.deploy"
    quiet = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    running = [_started(tmp_path / "master.log", f"{where}.master.Master", *quiet)]
    try:
        address = _wait_for(tmp_path / "master.log", r"Starting Spark master at (spark://\S+)")
        for number in range(2):
            log = tmp_path / f"worker-{number}.log"
            running.append(
                _started(
                    log,
                    f"{where}.worker.Worker",
                    *quiet,
                    "--cores",
                    "1",
                    "--memory",
                    "700m",
                    "--work-dir",
                    str(tmp_path / f"work-{number}"),
                    address,
                )
            )
            _wait_for(log, r"(Successfully registered with master)")
        yield address
    finally:
        for process in reversed(running):
            process.kill()
            process.wait()


@pytest.mark.timeout(900)
def test_the_same_pipeline_on_a_cluster(
    master: str, broker: pentalog.Broker, topic: str, tmp_path: Path
) -> None:
    server = broker.address("kafka")
    make_topic(server, topic, 2)
    make_topic(server, f"{topic}-out", 2)
    produce(server, topic, [*orders(0, 2000), "poison"])
    file = tmp_path / "pipeline.toml"
    file.write_text(
        f"""[pipeline.orders]
        from = "{server}"
        topics = ["{topic}"]
        into = "{tmp_path}/lake"
        decode = {{ format = "json", schema = "id BIGINT, amount DOUBLE" }}
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER, master, str(file), server, f"{topic}-out"],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "executors 2" in done.stdout
    assert "verified 2001" in done.stdout
    assert len(records(server, f"{topic}-out", 2)) == 2001

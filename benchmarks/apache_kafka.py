"""Apache Kafka itself, from Maven Central's jars: yardstick of benchmarks, oracle of tests.

One combined broker and controller with Kafka's own defaults and 1 GiB of heap.  Run as a program
it starts one and prints its address.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from brokers import Broker, BrokerFailed, wait_for_metadata
from pentalog.testing.ports import reserve_port

VERSION = "4.3.1"
_LOGGER_VERSION = "1.7.36"
_HEAP = ("-Xms1g", "-Xmx1g")
_ALWAYS = ("-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
# What Kafka's own start script passes to the virtual machine.
_LASTING = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    *_ALWAYS,
)
# A process that lives for seconds spends more on compiling its code well than it gets back.
_BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *_ALWAYS)

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>pentalog</groupId>
  <artifactId>yardstick</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId>
      <version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId>
      <version>{logger}</version>
    </dependency>
  </dependencies>
</project>
"""


class JarsMissing(Exception):
    """Apache Kafka's jars are not here and could not be fetched."""


def jars() -> Path:
    """The directory of Kafka's jars, fetched on the first call on this machine."""
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pentalog"
    directory = base / f"kafka-{VERSION}"
    base.mkdir(parents=True, exist_ok=True)
    with (base / f"kafka-{VERSION}.lock").open("w") as lock:
        # Tests run in parallel; whoever comes first fetches, the others wait here.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            _fetch_jars(directory)
    return directory


def run_tool(
    main_class: str, arguments: Sequence[str], *, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's command line classes to its end."""
    return subprocess.run(
        [_java(), *_BRIEF, "-Xmx256m", "-cp", _class_path(), main_class, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=os.environ,
    )


def start(
    directory: Path,
    *,
    settings: Mapping[str, str] | None = None,
    name: str = "kafka",
    port: int = 0,
    is_brief: bool = False,
) -> Broker:
    """Format `directory` if it is new and start one node, on a free port unless one is given.

    `is_brief` is for tests: the node starts with half of the CPU time, and is slower afterwards.
    """
    broker = launch(directory, settings or {}, name=name, port=port, is_brief=is_brief)
    started_at = time.monotonic()
    wait_for_metadata(broker.address, broker.process, broker.log)
    broker.start_s = time.monotonic() - started_at
    return broker


def launch(
    directory: Path,
    settings: Mapping[str, str],
    *,
    name: str = "kafka",
    port: int = 0,
    cluster_id: str = "",
    heap: Sequence[str] = _HEAP,
    is_brief: bool = False,
) -> Broker:
    """Like `start`, for a node of several: it answers once enough of the others are there."""
    directory.mkdir(parents=True, exist_ok=True)
    properties, address, data = _write_properties(directory, settings, port)
    if not (data / "meta.properties").exists():
        formatted = run_tool(
            "kafka.tools.StorageTool",
            ["format", "-t", cluster_id or new_cluster_id(), "-c", str(properties)],
        )
        if formatted.returncode != 0:
            raise BrokerFailed(f"format failed:\n{formatted.stdout}{formatted.stderr}")
    log = directory / "kafka.stderr"
    options = _BRIEF if is_brief else _LASTING
    command = [_java(), *heap, *options, "-cp", _class_path(), "kafka.Kafka"]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, str(properties)], stdout=output, stderr=output, cwd=directory, env=os.environ
        )
    return Broker(name, address, data, log, process)


def new_cluster_id() -> str:
    """A leading zero byte keeps it from starting with a dash, which would look like an option."""
    return base64.urlsafe_b64encode(b"\0" + os.urandom(15)).decode().rstrip("=")


def _write_properties(
    directory: Path, settings: Mapping[str, str], port: int
) -> tuple[Path, str, Path]:
    data = directory / "data"
    address = f"127.0.0.1:{port or reserve_port()}"
    controller = f"127.0.0.1:{reserve_port()}"
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": controller,
        "controller.quorum.voters": f"1@{controller}",
        "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{address}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        # One node cannot hold the three copies that Kafka asks for by default.
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # Deleted topics give their page memory back between runs, not a minute later.
        "log.segment.delete.delay.ms": "1000",
        **settings,
    }
    path = directory / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path, address, data


def _class_path() -> str:
    return f"{jars()}/*"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None:
        raise JarsMissing("no Java found; install a Java 17 runtime or set JAVA_HOME")
    return java


def _fetch_jars(directory: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise JarsMissing(
            f"{directory} does not exist and mvn is not installed; install Maven, or put the jars"
            f" of Apache Kafka {VERSION} (kafka_2.13, kafka-tools and what they need) there"
        )
    with tempfile.TemporaryDirectory(dir=directory.parent) as work:
        pom = Path(work) / "pom.xml"
        pom.write_text(_POM.format(version=VERSION, logger=_LOGGER_VERSION))
        target = Path(work) / "jars"
        fetched = subprocess.run(
            [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
             f"-DoutputDirectory={target}"],
            capture_output=True,
            text=True,
            timeout=900,
            check=False, env=os.environ,
        )  # fmt: skip
        if fetched.returncode != 0:
            raise JarsMissing(f"mvn could not fetch Apache Kafka {VERSION}:\n{fetched.stdout}")
        target.rename(directory)


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="where its data and settings go")
    parser.add_argument("settings", nargs="*", help="broker settings as NAME=VALUE")
    arguments = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in arguments.settings)
    broker = start(arguments.directory, settings=settings)
    print(f"Apache Kafka {VERSION} on {broker.address}, process {broker.process.pid}", flush=True)
    try:
        return broker.process.wait()
    except KeyboardInterrupt:
        return broker.stop()


if __name__ == "__main__":
    sys.exit(_main())

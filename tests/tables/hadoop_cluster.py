"""A real Hadoop on the loopback, from Maven Central's jars: YARN with two nodes, and an HDFS."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jar_files
import pyspark

from pentalog.tables import archive
from pentalog.testing.ports import reserve_port

_JARS = Path(pyspark.__file__).parent / "jars"
_CERTIFICATES = "org.bouncycastle:bcpkix-jdk18on:1.82"
"""The ResourceManager makes itself some, and its jar leaves the library out."""
_SERVERS = "org.apache.hadoop"
_NAME_NODE = f"{_SERVERS}.hdfs.server.namenode.NameNode"
_JAVA = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
         "--add-opens=java.base/java.lang=ALL-UNNAMED")  # fmt: skip
_ENOUGH_S = 180
_NODES = 2


class Cluster(NamedTuple):
    """What clients are told, and where its pages are."""

    configuration: Path
    resource_manager: str

    def applications(self, *states: str) -> list[dict[str, Any]]:
        page = f"http://{self.resource_manager}/ws/v1/cluster/apps?states={','.join(states)}"
        return list((_page(page)["apps"] or {}).get("app", []))


@contextmanager
def started(folder: Path) -> Iterator[Cluster]:
    """All its processes, ended afterwards; skips the test if the jars cannot be had."""
    classes = _classes()
    manager, names = f"127.0.0.1:{reserve_port()}", f"127.0.0.1:{reserve_port()}"
    shared = _yarn(manager) | _hdfs(folder, names)
    clients = _written(folder / "clients", shared)
    _run(folder / "format.log", clients, classes, _NAME_NODE, "-format", "-nonInteractive").wait()
    mains = {
        "names": (clients, _NAME_NODE),
        "data": (clients, f"{_SERVERS}.hdfs.server.datanode.DataNode"),
        "manager": (clients, f"{_SERVERS}.yarn.server.resourcemanager.ResourceManager"),
    }
    for number in range(_NODES):
        own = _written(folder / f"node-{number}", shared | _node(folder / f"node-{number}"))
        mains[f"node-{number}"] = (own, f"{_SERVERS}.yarn.server.nodemanager.NodeManager")
    with ExitStack() as ending:
        running = {}
        for name, (configuration, main) in mains.items():
            log = folder / f"{name}.log"
            running[log] = _run(log, configuration, classes, main)
            ending.callback(_end, running[log])
        _wait(running, lambda: _live_data_nodes(names) == 1)
        _wait(running, lambda: _live_nodes(manager) == _NODES)
        yield Cluster(clients, manager)


def _classes() -> str:
    """The servers, and from Spark what they log with."""
    version = next(_JARS.glob("hadoop-client-api-*.jar")).stem.rpartition("-")[2]
    packages = [f"{_SERVERS}:hadoop-client-minicluster:{version}", _CERTIFICATES]
    folder = jar_files.fetched(f"hadoop-{version}", packages, ("hadoop-", "bc"))
    logging = [*_JARS.glob("*slf4j*.jar"), *_JARS.glob("log4j-*.jar")]
    return os.pathsep.join(str(one) for one in [*logging, *folder.glob("*.jar")])


def _yarn(manager: str) -> dict[str, str]:
    prefix = "yarn.resourcemanager"
    doors = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
    return {
        f"{prefix}.hostname": "127.0.0.1",
        **{f"{prefix}.{one}": f"127.0.0.1:{reserve_port()}" for one in doors},
        f"{prefix}.webapp.address": manager,
        f"{prefix}.scheduler.class": (
            f"{_SERVERS}.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
        ),
    }


def _hdfs(folder: Path, names: str) -> dict[str, str]:
    return {
        "fs.defaultFS": f"hdfs://127.0.0.1:{reserve_port()}",
        "hadoop.tmp.dir": str(folder / "hadoop"),
        "dfs.namenode.http-address": names,
        **{f"dfs.datanode.{one}": "127.0.0.1:0" for one in ("address", "http.address")},
        "dfs.datanode.ipc.address": "127.0.0.1:0",
        "dfs.replication": "1",
    }


def _node(folder: Path) -> dict[str, str]:
    prefix = "yarn.nodemanager"
    doors = ("address", "localizer.address", "webapp.address", "collector-service.address")
    return {
        f"{prefix}.hostname": "127.0.0.1",
        **{f"{prefix}.{one}": "127.0.0.1:0" for one in doors},
        f"{prefix}.resource.memory-mb": "4096",
        f"{prefix}.resource.cpu-vcores": "4",
        f"{prefix}.vmem-check-enabled": "false",
        f"{prefix}.pmem-check-enabled": "false",
        f"{prefix}.disk-health-checker.enable": "false",
        f"{prefix}.local-dirs": str(folder / "local"),
        f"{prefix}.log-dirs": str(folder / "logs"),
    }


def _written(folder: Path, properties: Mapping[str, str]) -> Path:
    """The files of a cluster; each server takes from them what concerns it."""
    folder.mkdir()
    for name, prefixes in (
        ("core", ("fs.", "hadoop.")), ("hdfs", ("dfs.",)), ("yarn", ("yarn.",)),
    ):  # fmt: skip
        lines = (
            f"<property><name>{key}</name><value>{value}</value></property>"
            for key, value in properties.items()
            if key.startswith(prefixes)
        )
        text = f"<configuration>{''.join(lines)}</configuration>"
        (folder / f"{name}-site.xml").write_text(text)
    return folder


def _run(log: Path, configuration: Path, classes: str, *words: str) -> subprocess.Popen[bytes]:
    java = archive.java()
    with log.open("wb") as file:
        return subprocess.Popen(
            [str(java), *_JAVA, "-cp", f"{configuration}{os.pathsep}{classes}", *words],
            stdout=file, stderr=subprocess.STDOUT, cwd=log.parent,
            env={**os.environ, "JAVA_HOME": str(java.parent.parent)},
        )  # fmt: skip


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kindly first: a node ends its containers."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait(running: Mapping[Path, subprocess.Popen[bytes]], done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _ENOUGH_S
    while time.monotonic() < deadline:
        for log, process in running.items():
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        try:
            if done():
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"not ready after {_ENOUGH_S} s: {[str(one) for one in running]}")


def _live_data_nodes(names: str) -> int:
    query = "Hadoop:service=NameNode,name=FSNamesystemState"
    found = _page(f"http://{names}/jmx?qry={query}")["beans"]
    return int(found[0]["NumLiveDataNodes"]) if found else 0


def _live_nodes(manager: str) -> int:
    return int(_page(f"http://{manager}/ws/v1/cluster/metrics")["clusterMetrics"]["activeNodes"])


def _page(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=10) as page:
        return json.load(page)

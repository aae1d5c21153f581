"""How long until every door listens: as a process beside Apache Kafka, and as a test's fixture.

python benchmarks/startup.py                  # ten starts of each, three of Apache Kafka
python benchmarks/startup.py --without-kafka
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import apache_kafka
from brokers import ROOT

ENDPOINTS = ("kafka", "fluvio-sc", "fluvio-spu", "cursus", "rustlog", "blipmq", "http")
IDLE_S = 2.0
KAFKA_ROUNDS = 3

_FIXTURE = """
import json, time
began = time.perf_counter()
from pentalog.testing import Broker
with Broker() as broker:
    first_s = time.perf_counter() - began
began = time.perf_counter()
with Broker() as broker:
    again_s = time.perf_counter() - began
print(json.dumps([first_s, again_s]))
"""


def environment() -> dict[str, str]:
    """As an installed package is: compiled once, at its first start."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    return variables


def start_process(directory: Path, *, idle_s: float) -> tuple[float, float, float]:
    """Seconds until every door listens, CPU seconds until then, and MiB held when idle."""
    listen = [f"--listen={name}=127.0.0.1:0" for name in ENDPOINTS]
    began = time.perf_counter()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pentalog",
            "start",
            "--data",
            str(directory),
            *listen,
            "--console=off",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    listening = 0
    for line in process.stdout:
        listening += " listening on " in line
        if line.startswith("ready"):
            break
    took_s = time.perf_counter() - began
    cpu_s = time.clock_gettime((~process.pid << 3) | 2)
    assert listening == len(ENDPOINTS), f"{listening} doors listen"
    time.sleep(idle_s)
    status = Path(f"/proc/{process.pid}/status").read_text()
    held_kib = next(int(line.split()[1]) for line in status.splitlines() if "VmRSS" in line)
    process.terminate()
    process.communicate()
    return took_s, cpu_s, held_kib / 1024


def start_fixture() -> tuple[float, float]:
    """Seconds of a test run's first broker, imports included, and of the next one."""
    done = subprocess.run(
        [sys.executable, "-c", _FIXTURE], env=environment(), capture_output=True, check=True
    )
    first_s, again_s = json.loads(done.stdout)
    return first_s, again_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--without-kafka", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pentalog-startup-") as name:
        directory = Path(name)
        start_process(directory / "warm", idle_s=0)
        starts = [
            start_process(directory / str(number), idle_s=IDLE_S)
            for number in range(arguments.rounds)
        ]
        fixtures = [start_fixture() for _ in range(arguments.rounds)]
        kafka = []
        if not arguments.without_kafka:
            for number in range(KAFKA_ROUNDS):
                broker = apache_kafka.start(directory / f"kafka-{number}")
                time.sleep(IDLE_S)
                kafka.append((broker.start_s, broker.rss_bytes / (1 << 20)))
                broker.stop()
    rows = [
        ("pentalog start, all doors listening", starts, 0, 1000, "ms"),
        ("  CPU time of that", starts, 1, 1000, "ms"),
        ("  memory when idle", starts, 2, 1, "MiB"),
        ("fixture, first of a run, with imports", fixtures, 0, 1000, "ms"),
        ("fixture, every other", fixtures, 1, 1000, "ms"),
        ("Apache Kafka, first Metadata answer", kafka, 0, 1000, "ms"),
        ("  memory when idle", kafka, 1, 1, "MiB"),
    ]
    for title, measured, column, factor, unit in rows:
        values = [one[column] * factor for one in measured]
        if values:
            middle = statistics.median(values)
            spread = f"{min(values):.0f} to {max(values):.0f}"
            print(f"{title:40} {middle:7.0f} {unit:4} ({spread}, {len(values)} runs)")


if __name__ == "__main__":
    main()

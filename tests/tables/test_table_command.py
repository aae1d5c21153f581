"""The `pentalog table` commands, in processes of their own, while a pipeline runs in another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from drivers import command, end_group, finish
from lake import audit, forget_last_commit, make_topic, orders, places, produce

import pentalog
from pentalog.tables.pipeline import Pipeline, load
from pentalog.tables.sinks import open_table

FILE = """
[pipeline.orders]
from = "{server}"
topics = ["{topic}"]
into = "{into}"
trigger = "1 second"
decode = {{ format = "json", schema = "id BIGINT, amount DOUBLE" }}
"""


def test_a_running_pipeline_is_paused_killed_and_ended(
    broker: pentalog.Broker, topic: str, tmp_path: Path
) -> None:
    """Another process pauses and resumes it; the JVM is killed; SIGTERM ends it with 0."""
    server = broker.address("kafka")
    make_topic(server, topic)
    produce(server, topic, orders(0, 150))
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE.format(server=server, topic=topic, into=tmp_path / "lake"))
    declared = load(file)["orders"]
    running = command("run", str(file), "--json")
    try:
        wait_for_rows(declared, 150, running)
        assert told("status", str(file))[0]["state"] == "running"
        assert told("pause", str(file))["paused"] is True
        assert told("list", str(file))[0]["state"] == "paused"
        time.sleep(3)
        produce(server, topic, orders(150, 50))
        time.sleep(3)
        assert len(places(declared, "bronze")) == 150
        status = told("status", str(file))[0]
        assert status["lag"]["records"] == 50
        shown = status["group"]["offsets"]
        assert sum(end for at, end in shown.items() if at.startswith(f"{topic}/")) == 150
        told("resume", str(file))
        wait_for_rows(declared, 200, running)
        running.send_signal(signal.SIGTERM)
        code, _, err = finish(running)
        assert code == 0, err[-2000:]
    finally:
        end_group(running)
    audit(declared, 200)
    forget_last_commit(declared)
    produce(server, topic, orders(200, 100))
    again = command("run", str(file))
    try:
        wait_for_rows(declared, 300, again)
        for number in java_below(again.pid):
            os.kill(number, signal.SIGKILL)
        again.wait(60)
    finally:
        end_group(again)
    audit(declared, 300)


def wait_for_rows(declared: Pipeline, count: int, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 150
    while time.monotonic() < until:
        assert process.poll() is None, process.communicate()
        tables = [open_table(declared.table(layer)) for layer in ("bronze", "dead_letters")]
        if all(one.exists() for one in tables):
            ends = [sum(at.end for at in one.state().covered.values()) for one in tables]
            if min(ends) >= count:
                return
        time.sleep(0.3)
    raise AssertionError(f"{count} rows did not come")


def told(*words: str) -> Any:
    code, out, err = finish(command(*words, "--json"))
    assert code == 0, err
    return json.loads(out)


def java_below(parent: int) -> list[int]:
    """The JVMs a process started, from what the kernel says about it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if int(fields[1]) == parent and words[0].endswith(b"java"):
                found.append(int(entry.name))
    return found


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    assert finish(command("init", str(file), "--topic", "my.orders"))[0] == 0
    assert load(file)["my_orders"].topics == ("my.orders",)
    code, _, err = finish(command("init", str(file)))
    assert (code, err.count("\n")) == (1, 1)
    file.write_text("[pipeline.a]\ntopcs = ['x']\n")
    code, _, err = finish(command("list", str(file)))
    assert code == 1
    assert "pipeline.a.topcs: no such key; did you mean 'topics'?" in err

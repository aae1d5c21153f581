"""The `pentalog table` commands, in processes of their own, while a pipeline runs in another."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drivers import command, end_group, finish
from lake import audit, make_topic, orders, places, produce

import pentalog
from pentalog.tables.pipeline import Pipeline, load
from pentalog.tables.sinks import open_table
from pentalog.tables.status import state_of
from pentalog.testing.ports import reserve_port

FILE = """
[pipeline.orders]
from = "{server}"
topics = ["{topic}"]
into = "{into}"
trigger = "1 second"
decode = {{ format = "json", schema = "id BIGINT, amount DOUBLE" }}
"""


def test_a_running_pipeline_is_paused_and_ended(
    broker: pentalog.Broker, topic: str, tmp_path: Path
) -> None:
    """Another process pauses and resumes it; SIGTERM ends it with 0."""
    server = broker.address("kafka")
    make_topic(server, topic)
    produce(server, topic, orders(0, 150))
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE.format(server=server, topic=topic, into=tmp_path / "lake"))
    declared = load(file)["orders"]
    metrics = f"127.0.0.1:{reserve_port()}"
    running = command("run", str(file), "--json", "--metrics", metrics)
    try:
        wait_for_rows(declared, 150, running)
        wait_for(lambda: state_of(declared) == "running", running)
        assert told("status", str(file))[0]["state"] == "running"
        # A batch is counted after its progress is kept, which is what `state_of` reads.
        counted = 'pentalog_pipeline_rows_total{pipeline="orders"} 150'
        wait_for(lambda: counted in exposed(metrics), running)
        assert told("pause", str(file))["paused"] is True
        wait_for(lambda: state_of(declared) == "paused", running)
        produce(server, topic, orders(150, 50))
        assert told("list", str(file))[0]["state"] == "paused"
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


def exposed(metrics: str) -> str:
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def wait_for_rows(declared: Pipeline, count: int, process: subprocess.Popen[str]) -> None:
    def there() -> bool:
        tables = [open_table(declared.table(layer)) for layer in ("bronze", "dead_letters")]
        if not all(one.exists() for one in tables):
            return False
        ends = [sum(at.end for at in one.state().covered.values()) for one in tables]
        return min(ends) >= count

    wait_for(there, process)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "it did not come to be"
        time.sleep(0.2)


def told(*words: str) -> Any:
    code, out, err = finish(command(*words, "--json"))
    assert code == 0, err
    return json.loads(out)


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    assert finish(command("init", str(file), "--topic", "my.orders"))[0] == 0
    assert load(file)["my_orders"].topics == ("my.orders",)
    code, _, err = finish(command("init", str(file)))
    assert (code, err.count("\n")) == (1, 1)
    for verb in ("compact", "vacuum"):
        assert finish(command(verb, str(file))) == (
            0, "", "my_orders: has no tables yet; run it first\n"
        )  # fmt: skip
    file.write_text("[pipeline.a]\ntopcs = ['x']\n")
    code, _, err = finish(command("list", str(file)))
    assert code == 1
    assert "pipeline.a.topcs: no such key; did you mean 'topics'?" in err

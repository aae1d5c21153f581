"""The client of PyPI's `fluvio`, unmodified, against a real port."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fluvio")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "protocols" / "fluvio"))

from wat_modules import module

import pentalog
from pentalog.config import Listen
from pentalog.testing.ports import reserve_port

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

SCRIPTS = Path(__file__).parent / "fluvio_scripts.py"
DOORS = ("kafka", "fluvio-sc", "fluvio-spu")
TIMEOUT_S = 180


@pytest.fixture(scope="module")
def fluvio_broker() -> Iterator[pentalog.Broker]:
    listen = tuple(Listen(name, "127.0.0.1", 0) for name in DOORS)
    with pentalog.Broker(listen=listen) as broker:
        yield broker


def start(broker: pentalog.Broker, *arguments: object) -> subprocess.Popen[str]:
    name, *rest = map(str, arguments)
    return subprocess.Popen(
        [sys.executable, str(SCRIPTS), name, broker.address("fluvio-sc"), *rest],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )


def finish(process: subprocess.Popen[str]) -> Any:
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def run(broker: pentalog.Broker, *arguments: object) -> Any:
    return finish(start(broker, *arguments))


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == word


def test_topics_and_what_the_client_says_of_refusals(fluvio_broker: pentalog.Broker) -> None:
    found = run(fluvio_broker, "topics")
    assert found["topics"] == ["own-kept", "own-one", "own-two"]
    assert found["filtered"] == ["own-two"]
    assert found["partitions"] == ["own-two-0", "own-two-1", "own-two-2"]
    assert found["left"] == ["own-kept", "own-one"]
    assert "Topic already exists" in found["exists"]
    assert "Invalid topic name" in found["name"]
    assert "Topic not found" in found["missing"]
    assert "Topic not found" in found["producer"]
    assert "not found" in found["consumer"].lower()


def test_produce_and_consume_from_anywhere(fluvio_broker: pentalog.Broker) -> None:
    assert run(fluvio_broker, "produce", "places") == [0, 1, 2, 3, 4, 5]
    everything = [
        [0, "k0", "v0"],
        [1, "k1", "v1"],
        [2, "k2", "v2"],
        [3, "", "text"],
        [4, "", "a"],
        [5, "x", "b"],
    ]
    asked = {"beginning": 0, "beginning:2": 2, "end:2": 4, "3": 3}
    running = {
        place: start(fluvio_broker, "consume", "places", place, 6 - first)
        for place, first in asked.items()
    }
    for place, first in asked.items():
        assert finish(running[place]) == everything[first:], place


def test_every_compression(fluvio_broker: pentalog.Broker) -> None:
    run(fluvio_broker, "compressed", "packed")
    found = run(fluvio_broker, "consume", "packed", "beginning", 200)
    names = ("Gzip", "Snappy", "Lz4", "Zstd")
    expected = [[name, f"{name} {number} " * 20] for name in names for number in range(50)]
    assert [entry[1:] for entry in found] == expected
    assert [entry[0] for entry in found] == list(range(200))


def test_tail(fluvio_broker: pentalog.Broker) -> None:
    run(fluvio_broker, "produce", "tailed")
    following = start(fluvio_broker, "tail", "tailed")
    wait_for(following, "ready")
    run(fluvio_broker, "more", "tailed", 2)
    assert [entry[2] for entry in finish(following)] == ["more 0", "more 1"]


def test_managed_offsets(fluvio_broker: pentalog.Broker) -> None:
    run(fluvio_broker, "produce", "managed")
    assert [entry[0] for entry in run(fluvio_broker, "managed", "managed", 2, "leave")] == [0, 1]
    assert [entry[0] for entry in run(fluvio_broker, "managed", "managed", 3, "commit")] == [
        0,
        1,
        2,
    ]
    kept = [["the-consumer", "managed", 0, 2]]
    assert run(fluvio_broker, "consumers", "managed", "list") == kept
    assert [entry[0] for entry in run(fluvio_broker, "managed", "managed", 2, "commit")] == [3, 4]
    assert run(fluvio_broker, "consumers", "managed", "delete") == []
    assert [entry[0] for entry in run(fluvio_broker, "managed", "managed", 1, "leave")] == [0]


def test_several_partitions(fluvio_broker: pentalog.Broker) -> None:
    assert run(fluvio_broker, "partitions", "wide") == list(range(30))


def test_large_and_many(fluvio_broker: pentalog.Broker) -> None:
    assert run(fluvio_broker, "big", "large", 1_000_000) == [[1_000_000], "while reading"]


@pytest.mark.parametrize(
    ("kind", "expected"), [("filter", ["apple", "avocado"]), ("map", ["APPLE", "BANANA"])]
)
def test_smart_modules(
    fluvio_broker: pentalog.Broker, tmp_path: Path, kind: str, expected: list[str]
) -> None:
    path = tmp_path / f"{kind}.wasm"
    path.write_bytes(module(kind))
    run(fluvio_broker, "fruit", f"fruit-{kind}")
    found = run(fluvio_broker, "smart", f"fruit-{kind}", kind, path)
    assert f"stored-{kind}" in found["names"]
    assert found["path"] == found["name"] == expected


def test_a_smart_module_that_fails(fluvio_broker: pentalog.Broker, tmp_path: Path) -> None:
    path = tmp_path / "filter.wasm"
    path.write_bytes(module("filter"))
    run(fluvio_broker, "fruit", "fruit-bad", "?rotten")
    found = run(fluvio_broker, "smart", "fruit-bad", "bad", path, "fails")
    for way in ("path", "name"):
        assert found[way] == ["apple", "avocado"]
        assert "nope" in found[f"{way}-error"]


def test_a_restart_of_the_broker(tmp_path: Path) -> None:
    """A consumer goes on by itself, and what it remembers is there."""
    listen = tuple(Listen(name, "127.0.0.1", reserve_port()) for name in DOORS)
    broker = pentalog.Broker(tmp_path / "data", listen=listen).start()
    try:
        run(broker, "produce", "kept")
        run(broker, "managed", "kept", 2, "commit")
        following = start(broker, "follow", "kept", 8)
        for _ in range(6):
            wait_for(following, "read")
        broker.stop()
        broker.start()
        assert [entry[0] for entry in run(broker, "managed", "kept", 1, "leave")] == [2]
        run(broker, "more", "kept", 2)
        assert [entry[0] for entry in finish(following)] == list(range(8))
    finally:
        broker.stop()


def test_a_derived_topic_by_the_command_line(
    fluvio_broker: pentalog.Broker, tmp_path: Path
) -> None:
    path = tmp_path / "filter.wasm"
    path.write_bytes(module("filter"))
    run(fluvio_broker, "store_module", "only-a", path)
    run(fluvio_broker, "fruit", "raw")
    command = ["topic", "create", "clean", "--from", "raw", "--smartmodule", "only-a"]
    command += ["--server", fluvio_broker.address("kafka")]
    subprocess.run(
        [sys.executable, "-m", "pentalog", *command], check=True, timeout=TIMEOUT_S, env=os.environ
    )
    found = run(fluvio_broker, "consume", "clean", "beginning", 2)
    assert [entry[2] for entry in found] == ["apple", "avocado"]

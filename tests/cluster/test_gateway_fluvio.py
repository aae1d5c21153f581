"""The client of PyPI's `fluvio`, unmodified, with two gateways in front of Apache Kafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fluvio")

from confluent_kafka import Consumer, TopicPartition
from fleet_member import FleetMember
from kafka_node import Node
from wat_modules import module

from pentalog.clients.kafka import Cluster, committed
from pentalog.model.types import Partition

pytestmark = [pytest.mark.java, pytest.mark.clients, pytest.mark.timeout(900)]

SCRIPTS = Path(__file__).resolve().parents[1] / "conformance" / "fluvio_scripts.py"
TIMEOUT_S = 180


@pytest.fixture(scope="module")
def fleet(
    node: Node, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[FleetMember, FleetMember]]:
    directory = tmp_path_factory.mktemp("fluvio")
    doors = ("fluvio-sc", "fluvio-spu")
    one, other = (FleetMember(directory / name, node.address, doors) for name in ("one", "other"))
    yield one, other
    assert (one.stop(), other.stop()) == (0, 0)


def start(gateway: FleetMember, *arguments: object) -> subprocess.Popen[str]:
    name, *rest = map(str, arguments)
    return subprocess.Popen(
        [sys.executable, str(SCRIPTS), name, gateway.addresses["fluvio-sc"], *rest],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )


def finish(running: subprocess.Popen[str]) -> Any:
    out, _ = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 0
    return json.loads(out.splitlines()[-1])


def run(gateway: FleetMember, *arguments: object) -> Any:
    return finish(start(gateway, *arguments))


@pytest.fixture
def name() -> str:
    return f"f-{uuid.uuid4().hex[:12]}"


Fleet = tuple[FleetMember, FleetMember]


def test_written_at_one_and_read_at_the_other(fleet: Fleet, node: Node, name: str) -> None:
    one, other = fleet
    assert run(one, "produce", name) == list(range(6))
    found = run(other, "consume", name, "beginning:1", 5)
    assert [entry[2] for entry in found] == ["v1", "v2", "text", "a", "b"]
    following = start(other, "tail", name)
    assert following.stdout is not None
    assert following.stdout.readline().strip() == "ready"
    run(one, "more", name, 2)
    assert [entry[2] for entry in finish(following)] == ["more 0", "more 1"]
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": name})
    consumer.assign([TopicPartition(name, 0, 0)])
    values = [message.value() for message in consumer.consume(8, TIMEOUT_S)]
    consumer.close()
    assert values == [b"v0", b"v1", b"v2", b"text", b"a", b"b", b"more 0", b"more 1"]


def test_offsets_are_those_of_kafkas_groups(fleet: Fleet, node: Node, name: str) -> None:
    one, other = fleet
    run(one, "produce", name)
    assert [entry[0] for entry in run(one, "managed", name, 3, "commit")] == [0, 1, 2]
    assert run(other, "consumers", name, "list") == [["the-consumer", name, 0, 2]]
    with Cluster(node.address) as cluster:
        assert committed(cluster, "the-consumer")[Partition(name, 0)].offset == 3
    assert [entry[0] for entry in run(other, "managed", name, 2, "commit")] == [3, 4]
    assert run(one, "consumers", name, "delete") == []


def test_partitions_are_spread_over_both(fleet: Fleet, name: str) -> None:
    one, other = fleet
    assert run(other, "partitions", name) == list(range(30))
    before = [each.cpu_s for each in fleet]
    run(one, "compressed", f"{name}-c")
    assert len(run(other, "consume", f"{name}-c", "beginning", 200)) == 200
    assert all(each.cpu_s > start for each, start in zip(fleet, before, strict=True))
    assert run(one, "big", f"{name}-b", 900_000) == [[900_000], "while reading"]


def test_modules_are_kept_for_all(fleet: Fleet, tmp_path: Path, name: str) -> None:
    path = tmp_path / "filter.wasm"
    path.write_bytes(module("filter"))
    run(fleet[0], "fruit", name)
    for number, gateway in enumerate(fleet):
        found = run(gateway, "smart", name, f"{name}-{number}", path)
        assert f"stored-{name}-{number}" in found["names"]
        assert found["path"] == found["name"] == ["apple", "avocado"]


def test_topics(fleet: Fleet) -> None:
    found = run(fleet[0], "topics")
    assert found["topics"] == ["own-kept", "own-one", "own-two"]
    assert found["filtered"] == ["own-two"]
    assert found["partitions"] == ["own-two-0", "own-two-1", "own-two-2"]
    assert "exists" in found["exists"]
    assert all(found[refused] for refused in ("name", "missing", "producer", "consumer"))
    assert found["left"] == ["own-kept", "own-one"]


def test_a_consumer_outlives_its_gateway(fleet: Fleet, name: str) -> None:
    one, other = fleet
    run(one, "produce", name)
    following = start(one, "follow", name, 8)
    assert following.stdout is not None
    for _ in range(6):
        assert following.stdout.readline().strip() == "read"
    for gateway in fleet:
        gateway.kill()
        gateway.start()
    run(other, "more", name, 2)
    assert [entry[0] for entry in finish(following)] == list(range(8))

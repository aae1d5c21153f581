"""A broker's topics moved to Apache Kafka, served there by a gateway, and moved back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gateway_process import GatewayProcess
from kafka_node import Node

import pentalog
from pentalog.clients.kafka import (
    EARLIEST,
    LATEST,
    Cluster,
    GroupOffset,
    TransactionalProducer,
    commit,
    committed,
)
from pentalog.clients.rustlog import RustLogClient
from pentalog.model import batch
from pentalog.model.types import Partition, Record

pytestmark = pytest.mark.java

LISTEN = ("kafka=127.0.0.1:0",)


def move(source: str, target: str, topic: str) -> dict[str, object]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pentalog", "move", "--server", source),
            *("--to", f"kafka://{target}", "--topic", topic, "--json"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_there_and_back(
    node: Node,
    gateways: Callable[[str | None], GatewayProcess],
    topic: str,
    tmp_path: Path,
) -> None:
    at = Partition(topic, 0)
    now_ms = int(time.time() * 1000)
    with (
        pentalog.Broker(tmp_path / "one", listen=LISTEN) as one,
        pentalog.Broker(tmp_path / "two", listen=LISTEN) as two,
        Cluster(one.address()) as source,
        Cluster(two.address()) as home,
        Cluster(node.address) as cluster,
    ):
        source.create_topic(topic, 1, {"retention.ms": "99999999", "subscription.lease.ms": "7"})
        for number in range(50):
            records = [Record(b"%d" % (100 * number + each)) for each in range(100)]
            source.produce(at, bytes(batch.build(records, timestamp_ms=now_ms)))
        producer = TransactionalProducer(source, "somebody")
        producer.produce(at, batch.build([Record(b"no")] * 3, timestamp_ms=now_ms))
        producer.abort()
        source.produce(at, bytes(batch.build([Record(b"last")], timestamp_ms=now_ms)))
        commit(source, topic, {at: GroupOffset(4321, "note")})
        answer = move(one.address(), node.address, topic)
        assert answer["records"] == 5001
        assert answer["groups"] == 1
        assert cluster.offsets({at: LATEST}) == source.offsets({at: LATEST}) == {at: 5005}
        assert committed(cluster, topic) == {at: GroupOffset(4321, "note")}
        with RustLogClient(gateways(node.address).address) as client:
            values = [record.value for record in client.records(topic, 0)]
            assert values == [*(b"%d" % number for number in range(5000)), b"last"]
            assert client.committed(topic, topic, 0) == 4321
        assert move(node.address, two.address(), topic)["records"] == 5001
        assert home.offsets({at: EARLIEST}) == {at: 0}
        assert home.offsets({at: LATEST}) == {at: 5005}
        assert committed(home, topic) == {at: GroupOffset(4321, "note")}

"""RustLog's door in front of Apache Kafka, next to the same door on a directory."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gateway_process import GatewayProcess
from kafka_node import Node

sys.path.insert(0, str(Path(__file__).parents[1] / "golden" / "rustlog"))

from test_rustlog_golden import METRICS, ORIGINAL, OURS, exchanges, failed, framed

from pentalog.clients.kafka import Cluster, GroupOffset, committed
from pentalog.clients.rustlog import ClientError, RustLogClient
from pentalog.model.types import Partition

pytestmark = pytest.mark.java

Gateways = Callable[[str | None], GatewayProcess]
LIST_TOPICS = (3, 9)
"""Where the topics of other tests are listed too."""
UNNAMEABLE = (
    "Invalid topic name: topic name {!r}: a cluster takes 1 to 249 ASCII letters, digits, '.', '_' "
    "and '-', and no name of its own topics"
)
EXPECTED = {
    **ORIGINAL,
    **OURS,
    7: failed(12, UNNAMEABLE.format("")),
    8: failed(12, UNNAMEABLE.format("a b/../é")),
    30: failed(
        5, "Offset commit failed: topic 'nope' does not exist in the cluster: create it first"
    ),
    31: framed(b"\x04\0"),
}


@pytest.mark.parametrize("dialect", ["binary", "json"])
@pytest.mark.parametrize("engine", ["local", "cluster"])
def test_the_same_on_both_engines(
    node: Node, gateways: Gateways, topic: str, engine: str, dialect: str
) -> None:
    gateway = gateways(node.address if engine == "cluster" else None)
    with RustLogClient(gateway.address, dialect=dialect) as client:
        client.create_topic(topic, 2)
        assert (topic, 2) in [(each.name, each.partitions) for each in client.topics()]
        with pytest.raises(ClientError, match="exists"):
            client.create_topic(topic, 2)
        with pytest.raises(ClientError, match="nothing"):
            client.produce("nothing", 0, [b"x"])
        values = [b"%d" % number + b"x" * (number % 700) for number in range(3000)]
        for start in range(0, 3000, 100):
            assert client.produce(topic, 1, values[start : start + 100]) == (start, 100)
        assert [record.value for record in client.records(topic, 1)] == values
        assert list(client.records(topic, 0)) == []
        assert client.committed("readers", topic, 1) is None
        assert client.commit("readers", topic, 1, 17)
        assert client.committed("readers", topic, 1) == 17
        assert client.produce(topic, 0, [bytes(5 << 20)]) == (0, 1)
        assert [len(record.value) for record in client.records(topic, 0)] == [5 << 20]


def test_two_gateways_and_the_cluster_itself(node: Node, gateways: Gateways, topic: str) -> None:
    first, second = gateways(node.address), gateways(node.address)
    at = Partition(topic, 0)
    with (
        RustLogClient(first.address, dialect="json") as one,
        RustLogClient(second.address, dialect="binary") as other,
        Cluster(node.address) as cluster,
    ):
        one.create_topic(topic, 1)
        for number in range(50):
            assert one.produce(topic, 0, [b"%d" % (2 * number)]).base_offset == 2 * number
            assert other.produce(topic, 0, [b"%d" % (2 * number + 1)])[0] == 2 * number + 1
        values = [b"%d" % number for number in range(100)]
        assert [record.value for record in one.records(topic, 0)] == values
        assert [record.value for record in other.records(topic, 0)] == values
        assert one.commit(topic, topic, 0, 42)
        assert other.committed(topic, topic, 0) == 42
        assert committed(cluster, topic) == {at: GroupOffset(42, "")}
        assert cluster.topic(topic).partitions.keys() == {0}


def test_captured_conversation(node: Node, gateways: Gateways) -> None:
    gateway = gateways(node.address)
    host, _, port = gateway.address.rpartition(":")
    asked = exchanges()
    answers: dict[int, bytes] = {}
    # The last two end their connections.
    for part in (asked[:-1], asked[-1:]):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(b"".join(frame for _, frame, _ in part))
            received = bytearray()
            while data := connection.recv(1 << 16):
                received += data
        for number, _, _ in part:
            size = 4 + int.from_bytes(received[:4], "big")
            answers[number] = bytes(received[:size])
            del received[:size]
        assert not received
    assert answers.pop(METRICS)[4] == 9
    listed = [b"\0\x04demo\0\0\0\x02" in answers.pop(number) for number in LIST_TOPICS]
    assert listed == [False, True]
    assert answers == {number: EXPECTED[number] for number in answers}

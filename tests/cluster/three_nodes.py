"""Three Apache Kafka nodes on loopback that hold everything three times, each of which may die."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

import apache_kafka
import brokers
from pentalog.testing.ports import reserve_port

_NODES = (1, 2, 3)
_HEAP = ("-Xms256m", "-Xmx512m")
_DEADLINE_S = 180.0
_SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "unclean.leader.election.enable": "false",
    # A dead node is noticed in seconds.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1500",
    "replica.lag.time.max.ms": "5000",
}


class Trio:
    """Every node is broker and controller, and keeps its address through all its lives."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cluster_id = apache_kafka.new_cluster_id()
        self._ports = {node: reserve_port() for node in _NODES}
        self._controllers = {node: f"127.0.0.1:{reserve_port()}" for node in _NODES}
        self._running = {node: self._launch(node) for node in _NODES}
        self.wait_until_whole()

    @property
    def address(self) -> str:
        """All three, as an engine's setting lists them."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def kill(self, node: int) -> None:
        self._running[node].kill()

    def start(self, node: int) -> None:
        self._running[node] = self._launch(node)

    def stop(self) -> None:
        for broker in self._running.values():
            if broker.process.poll() is None:
                broker.kill()

    def wait_until_whole(self) -> None:
        """Until every partition has all its copies: only then may the next one die."""
        for broker in self._running.values():
            brokers.wait_for_metadata(broker.address, broker.process, broker.log)
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        deadline = time.monotonic() + _DEADLINE_S
        while not self._whole(admin):
            assert time.monotonic() < deadline, f"not whole; see {self._directory}"
            time.sleep(0.2)

    def _whole(self, admin: AdminClient) -> bool:
        try:
            metadata = admin.list_topics(timeout=5)
        except KafkaException:
            return False  # nobody to be reached yet; the deadline says when that is too long
        copies = (
            len(partition.isrs) == len(partition.replicas)
            for topic in metadata.topics.values()
            for partition in topic.partitions.values()
        )
        return len(metadata.brokers) == len(_NODES) and all(copies)

    def _launch(self, node: int) -> brokers.Broker:
        address, controller = f"127.0.0.1:{self._ports[node]}", self._controllers[node]
        voters = ",".join(f"{each}@{where}" for each, where in self._controllers.items())
        settings = {
            **_SETTINGS,
            "node.id": str(node),
            "controller.quorum.bootstrap.servers": ",".join(self._controllers.values()),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
        }
        return apache_kafka.launch(
            self._directory / str(node),
            settings,
            name=f"kafka-{node}",
            port=self._ports[node],
            cluster_id=self._cluster_id,
            heap=_HEAP,
        )

"""The broker under test on a port it keeps, so that it can die and come back.

PENTALOG_TEST_SUBJECT=kafka puts Apache Kafka in its place: what fails there is the test's mistake.
"""

from __future__ import annotations

import os
from pathlib import Path

import apache_kafka
import brokers
from pentalog.testing.ports import reserve_port

IS_KAFKA = os.environ.get("PENTALOG_TEST_SUBJECT") == "kafka"

_KAFKA = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
}
_PENTALOG = {
    "group_initial_rebalance_delay_ms": "0",
    "group_session_timeout_ms_min": "1000",
    "consumer_session_timeout_ms": "6000",
    "consumer_heartbeat_interval_ms": "300",
}


class Node:
    """One broker; `start` after `kill` or `stop` brings it back with its data and address."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = reserve_port()
        self.broker = self._started()

    @property
    def address(self) -> str:
        return self.broker.address

    def start(self) -> None:
        self.broker = self._started()

    def kill(self) -> None:
        self.broker.kill()

    def stop(self) -> int:
        return self.broker.stop()

    def _started(self) -> brokers.Broker:
        if IS_KAFKA:
            return apache_kafka.start(
                self._directory, settings=_KAFKA, port=self._port, is_brief=True
            )
        return brokers.start_pentalog(self._directory, settings=_PENTALOG, port=self._port)

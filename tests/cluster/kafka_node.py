"""One Apache Kafka that may be killed and started again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import apache_kafka
from pentalog.testing.ports import reserve_port

_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "auto.create.topics.enable": "false",
}


class Node:
    """Apache Kafka on an address it keeps."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = reserve_port()
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        self.broker = apache_kafka.start(
            self._directory, settings=_SETTINGS, port=self._port, is_brief=True
        )

    def kill(self) -> None:
        self.broker.kill()


@contextmanager
def running(directory: Path) -> Iterator[Node]:
    """A node, killed afterwards; skips the test if Apache Kafka cannot be had."""
    try:
        started = Node(directory)
    except apache_kafka.JarsMissing as why:
        pytest.skip(str(why))
    try:
        yield started
    finally:
        started.kill()

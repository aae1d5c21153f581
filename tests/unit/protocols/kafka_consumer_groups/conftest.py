"""A broker with a topic, and a connection to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kafka"))

from disk_broker import Connection, DiskBroker

from pentalog.broker.port import TopicSpec


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    broker = DiskBroker(tmp_path, group_initial_rebalance_delay_ms=0)
    broker.topics.create(TopicSpec(name="orders", partitions=4))
    broker.runtime.run()
    yield Connection(broker)
    broker.groups.close()
    broker.close()

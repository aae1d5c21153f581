"""A broker of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fluvio_world import FluvioBroker, create_topic


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FluvioBroker]:
    made = FluvioBroker(tmp_path / "data", flush_interval_ms=100)
    yield made
    made.close()


@pytest.fixture
def demo(broker: FluvioBroker) -> FluvioBroker:
    """With a topic `demo` of one partition."""
    broker.sc().ask(1001, create_topic("demo"))
    return broker

"""A broker of its own for each test, on its own files and in front of a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))

from fluvio_gateway import FluvioGateway
from fluvio_world import FluvioBroker, create_topic

from pentalog.cluster import engine

REFRESH_MS = 100


@pytest.fixture(params=["local", "cluster"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FluvioBroker]:
    """On either engine; what differs is said by the tests that use `local`."""
    kind = FluvioBroker if request.param == "local" else FluvioGateway
    with patch.object(engine, "REFRESH_INTERVAL_MS", REFRESH_MS):
        made = kind(tmp_path / "data", flush_interval_ms=100)
        yield made
        made.close()


@pytest.fixture
def demo(broker: FluvioBroker) -> FluvioBroker:
    """With a topic `demo` of one partition."""
    broker.sc().ask(1001, create_topic("demo"))
    return broker

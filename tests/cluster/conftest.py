"""One Apache Kafka for all these tests, and topics nobody else uses."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "protocols" / "fluvio"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from gateway_process import GatewayProcess
from kafka_node import Node, running


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def topic() -> str:
    return f"gateway-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[Callable[[str | None], GatewayProcess]]:
    """Starts gateways; they are stopped after the test."""
    started: list[GatewayProcess] = []

    def start(cluster: str | None) -> GatewayProcess:
        directory = tmp_path / f"{len(started)}"
        directory.mkdir()
        started.append(GatewayProcess(directory, cluster))
        return started[-1]

    yield start
    for gateway in started:
        assert gateway.stop() == 0

"""A broker in a directory of its own, or in front of a cluster, and a connection to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cursus_world import Client, CursusBroker

sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))

from cursus_gateway import CursusGateway

LOCAL_ONLY = {"test_a_topic_may_have_an_equals_sign": "Kafka has no such names"}
"""Tests that are not run in front of a cluster, and why."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "broker" in metafunc.fixturenames:
        local = metafunc.function.__name__ in LOCAL_ONLY
        engines = ["local"] if local else ["local", "cluster"]
        metafunc.parametrize("broker", engines, indirect=True)


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CursusBroker]:
    if request.param == "cluster":
        gateway = CursusGateway(tmp_path)
        yield gateway  # type: ignore[misc]  # speaks as one
        gateway.close()
        return
    opened = CursusBroker(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def client(broker: CursusBroker) -> Client:
    return broker.connect()

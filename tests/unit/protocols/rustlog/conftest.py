"""A broker of its own for each test, on files and in front of a cluster, and a connection to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rustlog_world import RustLogConnection, RustLogWorld

sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))

from cluster_world import GatewayWorld


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        local = metafunc.definition.get_closest_marker("local_engine") is not None
        engines = ["local"] if local else ["local", "cluster"]
        metafunc.parametrize("world", engines, indirect=True)


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RustLogWorld]:
    kind = RustLogWorld if request.param == "local" else GatewayWorld
    made = kind(tmp_path)
    yield made
    made.close()


@pytest.fixture
def peer(world: RustLogWorld) -> RustLogConnection:
    return world.connect()

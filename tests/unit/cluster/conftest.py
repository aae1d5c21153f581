"""Two gateways with the Fluvio door, in front of one cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_world import ClusterWorld
from fluvio_gateway import FluvioPeer, agreed


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ClusterWorld]:
    made = ClusterWorld(tmp_path, flush_interval_ms=50)
    yield made
    made.close()


@pytest.fixture
def known() -> dict[str, FluvioPeer]:
    return {}


@pytest.fixture
def gateways(world: ClusterWorld, known: dict[str, FluvioPeer]) -> list[FluvioPeer]:
    """Two; the first is the owner."""
    made = [FluvioPeer(world, name, known) for name in ("one", "two")]
    agreed(world, made)
    return sorted(made, key=lambda each: not each.council.owned)

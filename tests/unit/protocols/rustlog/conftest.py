"""A broker and a connection of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rustlog_world import RustLogConnection, RustLogWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[RustLogWorld]:
    made = RustLogWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def peer(world: RustLogWorld) -> RustLogConnection:
    return world.connect()

"""A broker in a directory of its own, and a connection to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cursus_world import Client, CursusBroker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CursusBroker]:
    opened = CursusBroker(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def client(broker: CursusBroker) -> Client:
    return broker.connect()

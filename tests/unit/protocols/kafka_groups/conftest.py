"""A broker on disk for the requests of group members."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kafka"))

from group_line import GroupLine


@pytest.fixture
def line(tmp_path: Path) -> Iterator[GroupLine]:
    made = GroupLine(tmp_path)
    yield made
    made.close()

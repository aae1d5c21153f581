"""One secured broker for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from secured import Secured


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    yield made
    made.stop()

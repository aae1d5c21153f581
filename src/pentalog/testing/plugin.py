"""The pytest plugin: fixtures `pentalog` and `pentalog_session`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pentalog.testing.broker import Broker


@pytest.fixture(name="pentalog")
def pentalog_broker() -> Iterator[Broker]:
    """A broker of its own for this test: every door on a free port, temporary data."""
    from pentalog.testing.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session", name="pentalog_session")
def pentalog_session_broker() -> Iterator[Broker]:
    """One broker for the whole run; tests keep apart by the names of their topics and groups."""
    from pentalog.testing.broker import Broker

    with Broker() as broker:
        yield broker

"""One running broker for all client tests, and topics nobody else uses."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import brokers


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the broker under test: ours, or the one the environment names."""
    other = os.environ.get("PENTALOG_TEST_BOOTSTRAP")
    if other:
        yield other
        return
    started = brokers.start_pentalog(tmp_path_factory.mktemp("broker"))
    with brokers.stopping(started):
        yield started.address
        assert started.process.poll() is None, f"the broker ended; see {started.log}"


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that belongs to this test alone."""
    return f"conformance-{uuid.uuid4().hex[:12]}"

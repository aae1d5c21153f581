"""Brokers for those who operate them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from operator_bench import Bench


@pytest.fixture
def open_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Opens the broker of this test, as often as it was closed."""
    opened: list[Bench] = []

    def open_one(**settings: Any) -> Bench:
        for before in opened:
            before.close()
        opened[:] = [Bench(tmp_path, **settings)]
        return opened[0]

    yield open_one
    for bench in opened:
        bench.close()


@pytest.fixture
def bench(open_bench: Callable[..., Bench]) -> Bench:
    return open_bench(node_id=3, default_partitions=2, topic_defaults={"retention.ms": "9"})

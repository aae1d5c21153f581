"""Topic names as Kafka restricts them."""

from __future__ import annotations

import pytest

from pentalog.protocols.kafka.names import kafka_name_flaw


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "-", "_", "a" * 249])
def test_good(name: str) -> None:
    assert kafka_name_flaw(name) is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a b", "a/b", "ä", "a\n", "\u0661", "a" * 250, "a:b", "a\0"]
)
def test_bad(name: str) -> None:
    assert kafka_name_flaw(name)

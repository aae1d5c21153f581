"""Features of the cluster, by Kafka's names: what clients decide which dialect to speak by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Feature(NamedTuple):
    level: int
    """The level that holds."""
    least: int = 0
    """The lowest level this release could run at."""


FEATURES: Final[Mapping[str, Feature]] = {
    "group.version": Feature(1),
    "transaction.version": Feature(2),
}

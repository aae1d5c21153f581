"""pentalog: a durable event log that Kafka clients already know how to talk to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pentalog.embedded import Broker as Broker
    from pentalog.tables.user import spark as spark

__all__ = ["Broker", "spark"]


def __getattr__(name: str) -> object:
    # Most who import something of this package do not want a whole broker with its event loop.
    if name == "Broker":
        from pentalog.embedded import Broker

        return Broker
    if name == "spark":
        from pentalog.tables.user import spark

        return spark
    raise AttributeError(f"module 'pentalog' has no attribute {name!r}")

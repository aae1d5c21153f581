"""A real broker for tests, in the process of the test, that fails when it is told to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pentalog.testing.broker import Broker as Broker
    from pentalog.testing.faults import Fault as Fault

__all__ = ["Broker", "Fault"]


def __getattr__(name: str) -> object:
    # pytest loads the plugin in every run; only those that use it shall wait for a broker.
    if name == "Broker":
        from pentalog.testing.broker import Broker

        return Broker
    if name == "Fault":
        from pentalog.testing.faults import Fault

        return Fault
    raise AttributeError(f"module 'pentalog.testing' has no attribute {name!r}")

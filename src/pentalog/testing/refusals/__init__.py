"""Answers that refuse a request with an error of a test's choice, as each protocol says it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from pentalog.testing.refusals import blipmq, cursus, fluvio, kafka, rustlog


class Refusals(NamedTuple):
    """How one door refuses."""

    requests: Collection[str]
    """Every request it knows by name."""
    refusable: Collection[str]
    """Those that can be refused with an error; the others can be delayed and dropped."""
    check: Callable[[str | int], None]
    """Raises `ValueError` for an error this door does not have."""
    refuse: Callable[[memoryview, str | int, Any, Callable[..., None]], bool]
    """Payload, error, session and way out; False if the only answer is to hang up."""


REFUSALS: Final[Mapping[str, Refusals]] = {
    "kafka": Refusals(kafka.REQUESTS, kafka.REQUESTS, kafka.check, kafka.refuse),
    "fluvio": Refusals(fluvio.REQUESTS, fluvio.REFUSABLE, fluvio.check, fluvio.refuse),
    "cursus": Refusals(cursus.REQUESTS, cursus.REQUESTS, cursus.check, cursus.refuse),
    "rustlog": Refusals(rustlog.REQUESTS, rustlog.REQUESTS, rustlog.check, rustlog.refuse),
    "blipmq": Refusals(blipmq.REQUESTS, blipmq.REQUESTS, blipmq.check, blipmq.refuse),
}
"""By door."""

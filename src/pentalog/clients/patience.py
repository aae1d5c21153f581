"""When to try again, and when to stop trying for a while; time is told, not asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass


class CircuitOpen(Exception):
    """Not even tried: the last attempts all failed; the text says when the next one is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Exponential back-off: each wait is twice the one before, a random half of it left off."""

    retries_max: int = 5
    first_delay_ms: float = 50
    delay_ms_max: float = 2000

    def delays_ms(self) -> Iterator[float]:
        """How long to wait before each further attempt."""
        delay = self.first_delay_ms
        for _ in range(self.retries_max):
            yield random.uniform(delay / 2, delay)
            delay = min(2 * delay, self.delay_ms_max)


class CircuitBreaker:
    """Opens after so many failures in a row; lets one attempt through after a while.

    One attempt that succeeds closes it, one that fails opens it for as long again.
    """

    def __init__(self, *, failures_max: int = 10, open_ms: float = 5000) -> None:
        self.failures_max = failures_max
        self.open_ms = open_ms
        self._failures = 0
        self._closed_at_s = 0.0

    @property
    def is_open(self) -> bool:
        return self._failures >= self.failures_max

    def check(self, now_s: float) -> None:
        """Raise `CircuitOpen` unless an attempt may be made."""
        if self.is_open and now_s < self._closed_at_s:
            left_s = self._closed_at_s - now_s
            raise CircuitOpen(
                f"{self._failures} attempts failed in a row; the next is made in {left_s:.1f} s"
            )

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, now_s: float) -> None:
        self._failures += 1
        if self.is_open:
            self._closed_at_s = now_s + self.open_ms / 1000

"""Failed logins by address: each one but the first makes the next answer come later."""

from __future__ import annotations

from typing import Final, NamedTuple

from pentalog.runtime import Runtime

DELAY_MS_MIN: Final = 100
DELAY_MS_MAX: Final = 10_000
_FORGIVEN_S: Final = 60.0
"""After this long without a failure an address begins anew."""
_ADDRESSES_MAX: Final = 10_000


class _Failures(NamedTuple):
    number: int
    last_s: float


class LocalAttempts:
    """`security.Attempts`, counted here."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._failures: dict[str, _Failures] = {}

    def delay_ms(self, host: str) -> int:
        found = self._found(host)
        if found is None:
            return 0
        passed_ms = round((self._runtime.monotonic() - found.last_s) * 1000)
        return max(0, _delay_ms(found.number) - passed_ms)

    def failed(self, host: str) -> int:
        found = self._found(host)
        count = 1 if found is None else found.number + 1
        self._failures.pop(host, None)
        if len(self._failures) >= _ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[host] = _Failures(count, self._runtime.monotonic())
        return _delay_ms(count)

    def succeeded(self, host: str) -> None:
        self._failures.pop(host, None)

    def _found(self, host: str) -> _Failures | None:
        found = self._failures.get(host)
        if found is not None and self._runtime.monotonic() - found.last_s > _FORGIVEN_S:
            del self._failures[host]
            return None
        return found


def _delay_ms(count: int) -> int:
    # Once is a slip of the hand.
    return min(DELAY_MS_MAX, DELAY_MS_MIN << min(count - 2, 16)) if count > 1 else 0

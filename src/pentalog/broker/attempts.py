"""Login attempts by address: few at a time, and after failures one by one, each later.

Attempts under way count like failures until their verdict is there, so that guesses sent at once
wait for each other like guesses sent one by one.  An address never has more than a few attempts
under way, which also shares the threads that check passwords fairly between addresses.

A user who has logged in from an address before has a queue of their own there: someone who guesses
at other names behind the same address does not keep that user out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Final, TypeAlias

from pentalog.model.addresses import site_of
from pentalog.runtime import Runtime, Timer

DELAY_MS_MIN: Final = 100
DELAY_MS_MAX: Final = 10_000
UNDER_WAY_MAX: Final = 4
"""Attempts of one address at a time, until one fails."""
_FORGIVEN_S: Final = 60.0
"""Failures of an address are forgotten after this long without another one."""
_WAITING_BYTES_MAX: Final = 64 << 20
"""Of all messages that wait."""
_SOURCE_BYTES_MAX: Final = 4 << 20
"""Of those of one address: about 4,000 passwords, or 60 of the longest tokens."""
_ATTEMPT_BYTES: Final = 1 << 10
"""What an attempt takes besides its message."""
_SOURCES_MAX: Final = 10_000
_KNOWN_MAX: Final = 10_000
_LOOKED_AT: Final = 16

_Key: TypeAlias = tuple[str, str]
"""Address, and the user if they have logged in from there before."""


class _Source:
    """What attempts with one key have led to, and those that wait."""

    __slots__ = ("failures", "last_s", "timer", "under_way", "waiting", "waiting_bytes")

    def __init__(self) -> None:
        self.failures = 0
        self.last_s = 0.0
        self.under_way = 0
        self.waiting: OrderedDict[LocalAttempt, None] = OrderedDict()
        """Attempts in the order they came; any of them may leave."""
        self.waiting_bytes = 0
        self.timer: Timer | None = None

    @property
    def idle(self) -> bool:
        return not self.under_way and not self.waiting


class LocalAttempts:
    """`security.Attempts`, counted here."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sources: dict[_Key, _Source] = {}
        self._known: dict[_Key, None] = {}
        """Users by the address they have logged in from, the latest last."""
        self._waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._sources)

    def open(self, host: str, name: str) -> LocalAttempt:
        address = site_of(host)
        key = (address, name)
        return LocalAttempt(self, address, key if key in self._known else (address, ""))

    # What attempts report

    def begin(self, attempt: LocalAttempt) -> bool:
        source = self._source(attempt.key)
        size = attempt.size
        if source.waiting and (
            source.waiting_bytes + size > _SOURCE_BYTES_MAX
            or self._waiting_bytes + size > _WAITING_BYTES_MAX
        ):
            return False
        source.waiting[attempt] = None
        self._charge(source, size)
        if len(source.waiting) == 1:
            self._advance(attempt.key, source)
        return True

    def _charge(self, source: _Source, size: int) -> None:
        source.waiting_bytes += size
        self._waiting_bytes += size

    def leave(self, attempt: LocalAttempt) -> None:
        """Take an attempt that waits out of its queue."""
        source = self._sources[attempt.key]
        del source.waiting[attempt]
        self._charge(source, -attempt.size)
        self._tidy(attempt.key, source)

    def end(self, attempt: LocalAttempt) -> None:
        """Let the next attempt begin."""
        source = self._sources[attempt.key]
        source.under_way -= 1
        self._tidy(attempt.key, source)
        if source.waiting:
            self._soon(attempt.key, source, 0)

    def fail(self, key: _Key) -> int:
        """Count a failure; returns for how long the refusal is to be held back, in ms."""
        source = self._source(key)
        self._forgive(source)
        source.failures += 1
        source.last_s = self._runtime.monotonic()
        self._sources[key] = self._sources.pop(key)
        return _delay_ms(source.failures)

    def succeed(self, address: str, name: str) -> None:
        known = (address, name)
        self._known.pop(known, None)
        if len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[known] = None
        for key in (known, (address, "")):
            source = self._sources.get(key)
            if source is not None:
                source.failures = 0
                self._stop_timer(source)
                self._tidy(key, source)
                if source.waiting:
                    self._soon(key, source, 0)

    def _source(self, key: _Key) -> _Source:
        found = self._sources.get(key)
        if found is None:
            if len(self._sources) >= _SOURCES_MAX:
                self._evict()
            found = self._sources[key] = _Source()
        return found

    def _evict(self) -> None:
        # Those that are not idle belong to open connections, of which there is a limit.
        for key, source in islice(self._sources.items(), _LOOKED_AT):
            if source.idle:
                del self._sources[key]
                return

    def _advance(self, key: _Key, source: _Source) -> None:
        """Begin the next attempt, if it is time; those after it begin in later turns."""
        if not source.waiting or source.timer is not None:
            return
        self._forgive(source)
        if source.under_way >= (1 if source.failures else UNDER_WAY_MAX):
            return  # the end of one of them calls again
        passed_ms = round((self._runtime.monotonic() - source.last_s) * 1000)
        left_ms = _delay_ms(source.failures) - passed_ms
        if left_ms > 0:
            self._soon(key, source, left_ms)
            return
        attempt, _ = source.waiting.popitem(last=False)
        self._charge(source, -attempt.size)
        source.under_way += 1
        if source.waiting:
            self._soon(key, source, 0)
        attempt.run()

    def _soon(self, key: _Key, source: _Source, delay_ms: float) -> None:
        if source.timer is not None:
            return

        def due() -> None:
            source.timer = None
            self._advance(key, source)

        source.timer = self._runtime.after(delay_ms, due)

    def _forgive(self, source: _Source) -> None:
        if source.failures and self._runtime.monotonic() - source.last_s > _FORGIVEN_S:
            source.failures = 0

    def _tidy(self, key: _Key, source: _Source) -> None:
        if source.idle:
            self._stop_timer(source)
            if not source.failures:
                self._sources.pop(key, None)

    def _stop_timer(self, source: _Source) -> None:
        if source.timer is not None:
            source.timer.cancel()
            source.timer = None


class LocalAttempt:
    """`security.Attempt`: one attempt to log in, from when it is asked for to its verdict."""

    __slots__ = ("_address", "_attempts", "_run", "_under_way", "key", "size")

    def __init__(self, attempts: LocalAttempts, address: str, key: _Key) -> None:
        self.key = key
        self.size = _ATTEMPT_BYTES
        self._attempts = attempts
        self._address = address
        self._run: Callable[[], None] | None = None
        self._under_way = False

    def begin(self, run: Callable[[], None], size: int = 0) -> bool:
        self._run = run
        self.size += size
        if self._attempts.begin(self):
            return True
        self._run = None
        return False

    def run(self) -> None:
        run, self._run = self._run, None
        self._under_way = True
        assert run is not None, "an attempt begins once"
        run()

    def failed(self) -> int:
        delay_ms = self._attempts.fail(self.key)
        self.close()
        return delay_ms

    def succeeded(self, name: str) -> None:
        self._attempts.succeed(self._address, name)
        self.close()

    def cancel(self) -> None:
        if self._run is not None:
            self._run = None
            self._attempts.leave(self)

    def close(self) -> None:
        if self._under_way:
            self._under_way = False
            self._attempts.end(self)


def _delay_ms(count: int) -> int:
    # Once is a slip of the hand.
    return min(DELAY_MS_MAX, DELAY_MS_MIN << min(count - 2, 16)) if count > 1 else 0

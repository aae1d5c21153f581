"""What happens to subscriptions by itself: leases end, changes are written, unused ones are closed.

Each is done in slices: with thousands of subscriptions, one walk over all of them would keep
clients waiting.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pentalog.broker import subscription_rows as rows
from pentalog.broker.needs import Rows
from pentalog.broker.reservations import Reservations
from pentalog.broker.windows import Window
from pentalog.config import Config
from pentalog.model.errors import BrokerError
from pentalog.runtime import Runtime, Slices, Timer

if TYPE_CHECKING:
    from pentalog.broker.local_subscription import LocalSubscription

EXPIRE_MS: Final = 200
"""How often leases are looked at, as in the original."""
SAVE_MS: Final = 100
"""How long a change may wait to be written."""
IDLE_LOOK_MS: Final = 60_000


_PORTION_BYTES: Final = 64 << 10
_PORTION_WINDOWS: Final = 16


class Upkeep:
    """Timers of all subscriptions."""

    def __init__(
        self,
        state: Rows,
        runtime: Runtime,
        slices: Slices,
        reservations: Reservations,
        every: Mapping[int, LocalSubscription],
        abandoned: Callable[[LocalSubscription, int], None],
        weigh: Callable[[LocalSubscription, Window], None],
        config: Config,
    ) -> None:
        """`abandoned` is called with a subscription and the ms since its last use.

        `weigh` counts the states of a window.
        """
        self._state = state
        self._runtime = runtime
        self._reservations = reservations
        self._every = every
        self._abandoned = abandoned
        self._weigh = weigh
        self._idle_ms_max = config.subscription_idle_ms_max
        self._slices = slices
        self._dirty: dict[LocalSubscription, None] = {}
        self._leasing: dict[LocalSubscription, None] = {}
        self._saving = False
        self._expiring = False
        self._save_timer: Timer | None = None
        self._expire_timer: Timer | None = None
        self._idle_timer: Timer | None = None
        self._closed = False

    def start(self) -> None:
        """Begin to look for abandoned ones."""
        self._idle_timer = self._runtime.after(self._idle_look_ms, self._look_for_idle)

    def stop(self) -> None:
        """Write what has changed; nothing happens by itself after this."""
        self._closed = True
        for timer in (self._save_timer, self._expire_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        with contextlib.suppress(BrokerError):
            self._state.check()
            for subscription in self._every.values():
                if not subscription.closed:
                    self._write(subscription)

    def changed(self, subscription: LocalSubscription) -> None:
        """Its states are to be written, and its leases to be watched."""
        if subscription.closed or self._closed:
            return
        self._dirty[subscription] = None
        if self._save_timer is None and not self._saving:
            self._save_timer = self._runtime.after(SAVE_MS, self._save)
        if any(window.leases for window in subscription.windows):
            self._leasing[subscription] = None
            if self._expire_timer is None and not self._expiring:
                self._expire_timer = self._runtime.after(EXPIRE_MS, self._expire)

    def forget(self, subscription: LocalSubscription) -> None:
        """It has been closed."""
        self._dirty.pop(subscription, None)
        self._leasing.pop(subscription, None)

    def _expire(self) -> None:
        self._expire_timer = None
        self._expiring = True
        self._slices.run(self._expire_leases(), self._expired)

    def _expire_leases(self) -> Iterator[None]:
        now_ms = int(self._runtime.monotonic() * 1000)
        for subscription in list(self._leasing):
            if self._closed:
                return
            if subscription.closed:
                continue
            yield from subscription.expire(now_ms)
            if not any(window.leases for window in subscription.windows):
                self._leasing.pop(subscription, None)
            yield

    def _expired(self, error: Exception | None) -> None:
        self._expiring = False
        if self._leasing and not self._closed:
            self._expire_timer = self._runtime.after(EXPIRE_MS, self._expire)
        if error is not None:
            raise error

    def _save(self) -> None:
        self._save_timer = None
        self._saving = True
        self._slices.run(self._save_changed(), self._saved)

    def _save_changed(self) -> Iterator[None]:
        dirty, self._dirty = self._dirty, {}
        while dirty and not self._closed:
            try:
                self._state.check()
            except BrokerError:
                self._dirty = {**dirty, **self._dirty}
                return
            subscription, _ = dirty.popitem()
            if not subscription.closed:
                yield from self._write_in_steps(subscription)

    def _saved(self, error: Exception | None) -> None:
        self._saving = False
        if self._dirty and not self._closed:
            delay_ms = SAVE_MS
            try:
                self._state.check()
            except BrokerError:
                delay_ms = 10 * SAVE_MS
            self._save_timer = self._runtime.after(delay_ms, self._save)
        if error is not None:
            raise error

    def _write(self, subscription: LocalSubscription) -> None:
        """Write all at once: nothing is delivered from here on."""
        subscription.row = subscription.row._replace(used_ms=subscription.used_ms)
        rows.write(self._state, subscription.row)
        windows = subscription.windows
        # What was reserved and not used is given back.
        left = [each for each in windows if each.changed or each.reserved_end > each.cursor]
        self._reservations.write(subscription.subscription_id, left, ahead=False)

    def _write_in_steps(self, subscription: LocalSubscription) -> Iterator[None]:
        subscription.row = subscription.row._replace(used_ms=subscription.used_ms)
        rows.write(self._state, subscription.row)
        unwritten = [window for window in subscription.windows if window.unwritten]
        for some in _portions(unwritten):
            self._reservations.write(subscription.subscription_id, some)
            for window in some:
                self._weigh(subscription, window)
            yield
            if subscription.closed or self._closed:
                return
            try:
                self._state.check()
            except BrokerError:
                break
        if any(window.unwritten for window in unwritten):
            self.changed(subscription)

    @property
    def _idle_look_ms(self) -> int:
        return max(1, min(IDLE_LOOK_MS, self._idle_ms_max // 2))

    def _look_for_idle(self) -> None:
        self._slices.run(self._close_idle(), self._looked_for_idle)

    def _close_idle(self) -> Iterator[None]:
        now_s = self._runtime.monotonic()
        for subscription in list(self._every.values()):
            if self._closed or subscription.closed:
                continue
            idle_ms = int((now_s - subscription.used_s) * 1000)
            if idle_ms >= self._idle_ms_max:
                self._abandoned(subscription, idle_ms)
            elif abs(subscription.used_ms - subscription.row.used_ms) > self._idle_ms_max // 10:
                self.changed(subscription)
            yield

    def _looked_for_idle(self, error: Exception | None) -> None:
        if not self._closed:
            self._idle_timer = self._runtime.after(self._idle_look_ms, self._look_for_idle)
        if error is not None:
            raise error


def _portions(windows: Sequence[Window]) -> Iterator[list[Window]]:
    """Yield windows in portions that are quickly written: their states are compressed."""
    some: list[Window] = []
    size = 0
    for window in windows:
        some.append(window)
        size += len(window.states)
        if size >= _PORTION_BYTES or len(some) >= _PORTION_WINDOWS:
            yield some
            some, size = [], 0
    if some:
        yield some

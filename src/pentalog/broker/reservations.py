"""Offsets reserved in the state file before they are delivered: quality 0 is at most once.

The positions of subscriptions are written some times a second, so after a crash the state file is
behind the deliveries.  Records of quality 1 are delivered again then; those of quality 0 must not
be.  Each row therefore also says up to where deliveries may have gone on without another commit,
and none of quality 0 goes beyond that.  After a crash the records of quality 0 before that offset
are passed over: some of them were perhaps not delivered, which quality 0 allows.

How much is reserved follows the speed of the consumer, and the next reservation is written when
half of the newest one is used: a fast consumer rarely waits, and a crash costs a slow one little.
"""

from __future__ import annotations

from collections.abc import Sequence

from pentalog.broker import subscription_rows as rows
from pentalog.broker.needs import Rows
from pentalog.broker.subscription_rows import WindowRow
from pentalog.broker.windows import Window
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.model.types import Offset


class Reservations:
    def __init__(self, state: Rows) -> None:
        self._state = state
        self._closed = False

    def close(self) -> None:
        self._closed = True

    def extend(self, subscription_id: int, window: Window) -> None:
        """Reserve more offsets of one window, unless that is under way or impossible for now."""
        if window.reserving is not None or self._closed:
            return
        try:
            self._state.check()
        except BrokerError:
            return
        self.write(subscription_id, [window])

    def write(self, subscription_id: int, windows: Sequence[Window], *, ahead: bool = True) -> None:
        """Write rows of windows; without `ahead` nothing is delivered after this."""
        reserving: Later[None] = Later()
        ends: list[tuple[Window, Offset]] = []
        for window in windows:
            window.changed = False
            window.reserving = reserving
            end = window.reserve(ahead=ahead)
            ends.append((window, end))
            place = (subscription_id, window.at.index, window.first, window.floor)
            rows.write_window(self._state, WindowRow(*place, window.states, end))

        def settled(outcome: Later[None]) -> None:
            _grant(ends, reserving, outcome)
            reserving.fill(None)

        self._state.settle().then(settled)


def _grant(
    ends: Sequence[tuple[Window, Offset]], reserving: Later[None], outcome: Later[None]
) -> None:
    """Let deliveries go on to the ends that are in the state file now."""
    try:
        _ = outcome.value
        committed = True
    except BrokerError:
        committed = False  # the rows stay queued; the reservations before them still hold
    for window, end in ends:
        if window.reserving is reserving:  # otherwise a later one is on its way
            window.reserving = None
            if committed:
                window.reserved = end

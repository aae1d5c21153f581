"""The console as one value: where the broker is, who is looking, what was measured lately."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from pentalog.console.history import History, Lags
from pentalog.console.identity import Session, Sessions
from pentalog.console.observed import NotTold, Observed
from pentalog.console.place import Place
from pentalog.console.watched import Watched
from pentalog.model.types import Offset, Partition

_log: Final = logging.getLogger(__name__)

RATES_INTERVAL_S: Final = 2.0
_METRICS_EVERY: Final = 5
_TIDY_S: Final = 5.0
_REPLAYED_MAX: Final = 100_000


class Console:
    def __init__(self, place: Place) -> None:
        self.place = place
        self.sessions = Sessions(place)
        self.pages: dict[str, Session] = {}
        """Whose each open page is, by the page's id."""
        self.lags = Lags()
        self._observed = Observed(place)
        self._history = History(self.lags)
        self.replayed: dict[tuple[Partition, Offset], Offset] = {}
        """Dead letters sent back since the start, and which offsets they got."""

    def session_of(self, browser: str) -> Session:
        return self.sessions.get(browser)

    def watched_by(self, session: Session) -> Watched:
        """What concerns every client, for one browser."""
        return Watched(session, self._observed, self._history)

    def note_replayed(self, at: Partition, offset: Offset, now: Offset) -> None:
        self.replayed[at, offset] = now
        while len(self.replayed) > _REPLAYED_MAX:
            del self.replayed[next(iter(self.replayed))]

    async def measure(self) -> None:
        """Look at the broker a few times a minute, for as long as this process lives."""
        turn = 0
        while self.place.http:
            try:
                self._history.note_rates(await self._observed.rates())
                if turn % _METRICS_EVERY == 0:
                    samples = await self._observed.metrics()
                    self._history.note_metrics(now_ms(), samples)
            except NotTold as error:
                _log.debug("%s", error)
            turn += 1
            await asyncio.sleep(RATES_INTERVAL_S)

    async def tidy(self) -> None:
        """End sessions and connections that are due, for as long as this process lives."""
        while True:
            await asyncio.sleep(_TIDY_S)
            self.sessions.tidy()

    async def close(self) -> None:
        await self._observed.close()


def now_ms() -> int:
    return int(time.time() * 1000)

"""What concerns every client of the broker, as one browser may see it.

The broker shows it to the console, which asks first, in the name of the browser, whether that may
see it; a page has no other way to it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from pentalog.console.history import History
from pentalog.console.identity import Session
from pentalog.console.observed import Observed


class Watched:
    def __init__(self, session: Session, observed: Observed, history: History) -> None:
        self._session = session
        self._observed = observed
        self._history = history

    async def history(self) -> History:
        """What was measured lately; raises `NotTold` where there is nothing to measure."""
        self._observed.check()
        await self._session.check_operator()
        return self._history

    async def connections(self) -> list[dict[str, Any]]:
        await self._session.check_operator()
        return await self._observed.connections()

    async def subscriptions(self) -> list[dict[str, Any]]:
        await self._session.check_operator()
        return await self._observed.subscriptions()

    async def frames(self, connection: int) -> AsyncGenerator[dict[str, Any], None]:
        """Frames of a connection as they pass, until it closes or the right is taken away."""
        await self._session.check_operator()
        async with aclosing(self._observed.frames(connection)) as lines:
            async for line in lines:
                await self._session.check_operator()
                yield line

"""The messages of a topic: newest, live, from an offset or a time on, and found by a search."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from nicegui import context, ui

from pentalog.clients.kafka import Cluster
from pentalog.console import browsing
from pentalog.console.browsing import Tail
from pentalog.console.identity import Session, explain
from pentalog.console.pages.frame import attempted, is_denied, note
from pentalog.console.pages.produce import Produce
from pentalog.console.pages.record_table import message_table, record_dialog, shown
from pentalog.console.pages.searching import Searching
from pentalog.console.records import Row, parse_time
from pentalog.model.types import Partition

_ALL: Final = "all partitions"
_LIVE_S: Final = 0.5
_WAYS: Final = {
    "newest": "Newest",
    "live": "Live",
    "offset": "From offset",
    "time": "From time",
    "search": "Search",
}


class Messages:
    def __init__(
        self, session: Session, topic: str, partitions: list[int], produce: Produce
    ) -> None:
        self._session = session
        self._topic = topic
        self._partitions = partitions
        self._tail: Tail | None = None
        self._stepping = False
        self._live: deque[dict[str, Any]] = deque(maxlen=browsing.LIVE_ROWS_MAX)
        self._produce = produce

    async def build(self) -> None:
        with ui.column().classes("w-full gap-3 q-pt-sm"):
            with ui.row().classes("w-full items-center gap-3"):
                self._way = ui.toggle(_WAYS, value="newest", on_change=self._changed)
                self._way.props('no-caps unelevated toggle-color=primary data-test="way"')
                self._chosen = ui.select([_ALL, *self._partitions], value=_ALL)
                self._chosen.props('dense outlined aria-label="Partition"')
                self._chosen.on_value_change(self._changed)
                self._where = ui.input(placeholder="0").props(
                    'dense outlined data-test="where" aria-label="Where to begin"'
                )
                self._where.on("keydown.enter", self._show)
                self._go = ui.button("Show", on_click=self._show).props('outline data-test="show"')
            self._state = note("").props('data-test="state" aria-live=polite')
            self._searching = Searching(self._session, self._topic, self._open)
            self._searching.build(self._places)
            self._table = message_table(self._open)
        self._timer = ui.timer(_LIVE_S, self._step, active=False)
        context.client.on_delete(self._close)
        await self._changed()

    def _places(self) -> list[Partition]:
        chosen = self._partition()
        return [Partition(self._topic, one) for one in self._partitions if chosen in (None, one)]

    def _partition(self) -> int | None:
        return self._chosen.value if isinstance(self._chosen.value, int) else None

    async def _changed(self) -> None:
        way = self._way.value
        asks = way in ("offset", "time")
        self._where.set_visibility(asks)
        self._where.props(f'placeholder="{"0" if way == "offset" else "2026-01-31 13:45"}"')
        self._go.set_visibility(asks or way == "newest")
        self._go.set_text("Show" if asks else "Refresh")
        self._searching.set_visibility(way == "search")
        self._table.set_visibility(way != "search")
        self._close()
        self._state.set_text("")
        if way == "live":
            self._live.clear()
            self._table.rows = []
            self._tail = Tail(self._session.cluster(), self._topic, self._partition())
            await self._step()
            self._timer.activate()
        elif way == "newest":
            await self._show()

    async def _show(self) -> None:
        way, text, places = self._way.value, str(self._where.value or "0"), self._places()

        def read(cluster: Cluster) -> list[Row]:
            if way == "newest":
                return browsing.newest(cluster, places)
            if way == "time":
                return browsing.from_time(cluster, places, parse_time(text))
            if not text.strip().isdecimal():
                raise ValueError(f"{text!r} is no offset; write a number from 0 on")
            return browsing.from_offset(cluster, places, int(text))

        async def show() -> None:
            rows = await self._session.ask(read)
            self._table.rows = [shown(row) for row in rows]
            self._state.set_text(f"{len(rows)} records" if rows else "No records here.")

        await attempted(show())

    async def _step(self) -> None:
        tail = self._tail
        if tail is None or self._stepping:
            return
        self._stepping = True
        try:
            rows = await asyncio.to_thread(tail.step)
        except Exception as error:  # a tail outlives a broker's restart
            self._state.set_text(f"Waiting: {explain(error)}")
            if is_denied(error):
                self._close()
                self._live.clear()
                self._table.rows = []
                self._state.set_text(explain(error))
            return
        finally:
            self._stepping = False
        if tail is not self._tail:
            return
        if rows:
            self._live.extendleft(shown(row) for row in rows)
            self._table.rows = list(self._live)
        passed = f"; {tail.skipped:,} came too fast to show" if tail.skipped else ""
        self._state.set_text(f"Live: new records come in at the top{passed}.")

    def _close(self) -> None:
        self._timer.deactivate()
        if self._tail is not None:
            tail, self._tail = self._tail, None
            tail.close()

    async def _open(self, row: dict[str, Any]) -> None:
        at = Partition(self._topic, int(row["partition"]))
        offset = int(row["offset"])

        async def show() -> None:
            found = await self._session.ask(lambda cluster: browsing.one(cluster, at, offset))
            if found is None:
                raise ValueError(f"{at} no longer has a record at offset {offset}")
            record_dialog(found, self._produce)

        await attempted(show())

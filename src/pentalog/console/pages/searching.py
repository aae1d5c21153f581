"""The part of a topic's page that searches all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from nicegui import context, ui

from pentalog.clients.kafka.errors import Refused
from pentalog.console.identity import Session
from pentalog.console.pages.charts import short_number
from pentalog.console.pages.frame import attempted, every, note
from pentalog.console.pages.record_table import message_table, shown
from pentalog.console.query import FIELDS, JsonCondition, Query
from pentalog.console.records import parse_time
from pentalog.console.search import Progress, Search
from pentalog.model.types import Partition

_SHOWN: Final = 100
_REFRESH_S: Final = 0.25
_CHECK_S: Final = 5.0


class Searching:
    def __init__(
        self, session: Session, topic: str, on_show: Callable[[dict[str, Any]], Any]
    ) -> None:
        self._session = session
        self._topic = topic
        self._on_show = on_show
        self._search: Search | None = None
        self._drawn: tuple[int, int, str] = (-1, -1, "")

    def build(self, places: Callable[[], list[Partition]]) -> None:
        self._places = places
        with ui.column().classes("w-full gap-3") as self._whole:
            with ui.card().classes("pl-card"), ui.column().classes("w-full gap-2"):
                self._form()
            self._bar = ui.linear_progress(value=0, show_value=False, size="8px")
            self._bar.props('data-test="progress" aria-label="Progress of the search"')
            self._state = note("Searches every record of the topic, however many there are.")
            self._state.props('data-test="search-state" aria-live=polite')
            self._table = message_table(self._on_show).props('data-test="hits"')
            self._pages = ui.pagination(1, 1, direction_links=True, on_change=self._draw)
            self._pages.props("max-pages=9")
        self._timer = ui.timer(_REFRESH_S, self._draw, active=False)
        context.client.on_delete(self._drop)
        every(_CHECK_S, self._check)

    def set_visibility(self, visible: bool) -> None:
        self._whole.set_visibility(visible)
        if not visible:
            self.cancel()

    def cancel(self) -> None:
        if self._search is not None:
            self._search.cancel()

    def _drop(self) -> None:
        search, self._search = self._search, None
        if search is not None:
            self._session.drop_search(search)

    async def _check(self) -> None:
        """Stop showing records to those whose right to read them was taken away."""
        if self._search is None:
            return
        try:
            await self._session.check_readable(self._topic)
        except Refused:
            self.cancel()
            raise

    def _form(self) -> None:
        with ui.row().classes("w-full items-center gap-3"):
            self._text = ui.input("Text").classes("col-12 col-sm")
            self._text.props('dense outlined clearable data-find data-test="search-text"')
            self._fields = ui.select(list(FIELDS), value=list(FIELDS), multiple=True, label="in")
            self._fields.props("dense outlined use-chips").classes("col-12 col-sm-4")
            self._ignore_case = ui.checkbox("Ignore case")
        with ui.row().classes("w-full items-center gap-3"):
            self._condition = ui.input(
                "JSON value", placeholder='$.customer.name = "Ada", items[*].price > 10'
            ).classes("col-12 col-sm")
            self._condition.props('dense outlined clearable data-test="search-json"')
            self._since = ui.input("Since", placeholder="2026-01-31 13:45").classes("col")
            self._before = ui.input("Before", placeholder="2026-02-01").classes("col")
            for one in (self._since, self._before):
                one.props("dense outlined clearable")
        with ui.row().classes("gap-2"):
            ui.button("Search", icon="search", on_click=self._start).props(
                'unelevated data-test="search"'
            )
            self._stop = ui.button("Cancel", icon="close", on_click=self.cancel)
            self._stop.props('outline data-test="cancel-search"').set_enabled(False)
            self._more = ui.button("Let go of these, find more", on_click=self._go_on)
            self._more.props('outline data-test="more-hits"').set_visibility(False)
        for field in (self._text, self._condition, self._since, self._before):
            field.on("keydown.enter", self._start)

    def _query(self) -> Query:
        condition = (self._condition.value or "").strip()
        since, before = (self._since.value or "").strip(), (self._before.value or "").strip()
        return Query(
            self._text.value or "",
            frozenset(self._fields.value),
            bool(self._ignore_case.value),
            JsonCondition.parse(condition) if condition else None,
            parse_time(since) if since else None,
            parse_time(before) if before else None,
        )

    async def _start(self) -> None:
        self._drop()

        async def start() -> None:
            query, places = self._query(), self._places()
            origin = await self._session.origin(self._topic)
            search = Search(origin, places, query)
            try:
                self._session.keep_search(search)
            except ValueError:
                origin.close()
                raise
            self._search = search.start()
            self._drawn = (-1, -1, "")
            self._pages.value = 1
            self._timer.activate()

        await attempted(start())

    def _go_on(self) -> None:
        if self._search is not None:
            self._search.go_on()
            self._pages.value = 1

    def _draw(self) -> None:
        search = self._search
        if search is None:
            return
        progress = search.progress
        hits = search.hits
        page = int(self._pages.value or 1)
        self._bar.value = round(progress.share, 3)
        self._state.set_text(_told(progress, len(hits)))
        self._stop.set_enabled(not progress.over)
        self._more.set_visibility(progress.state == "resting")
        last = max(1, -(-len(hits) // _SHOWN))
        if last != self._pages.max:  # each assignment makes the browser draw its page
            self._pages.max = last
        wanted = hits[(page - 1) * _SHOWN : page * _SHOWN]
        drawn = (page, len(wanted), str(wanted[:1]))
        if drawn != self._drawn:
            self._table.rows = [shown(row) for row in wanted]
            self._drawn = drawn
        if progress.over:
            self._timer.deactivate()


def _told(progress: Progress, kept: int) -> str:
    speed = progress.scanned / progress.seconds if progress.seconds else 0
    text = (
        f"{progress.found:,} found in {progress.scanned:,} of {progress.total:,} offsets, "
        f"{progress.seconds:.1f} s, {short_number(speed)}/s"
    )
    if progress.lost:
        text += f"; {progress.lost:,} were gone before they could be read"
    if progress.state == "resting":
        text += f"; resting with {kept:,} hits below, none is skipped"
    elif progress.state == "failed":
        text += f"; failed: {progress.why}"
    return f"{progress.state.capitalize()}: {text}"

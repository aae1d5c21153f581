"""The first page: what passes through each door at this moment."""

from __future__ import annotations

from typing import Final

from nicegui import ui

from pentalog.clients.kafka.errors import Refused
from pentalog.clients.kafka.groups import listed
from pentalog.console import administration
from pentalog.console.application import Console, now_ms
from pentalog.console.history import DoorRates, History, Lags
from pentalog.console.identity import Session
from pentalog.console.observed import NotTold
from pentalog.console.pages import charts
from pentalog.console.pages.frame import BUILD_TIMEOUT_S, every, frame, guarded, heading, note

_DOORS: Final = {
    "kafka": "Kafka",
    "fluvio": "Fluvio",
    "cursus": "Cursus",
    "rustlog": "RustLog",
    "blipmq": "BlipMQ",
}


def register(console: Console) -> None:
    @ui.page("/", response_timeout=BUILD_TIMEOUT_S)
    @guarded(console)
    async def overview() -> None:
        with frame(console, "Overview", "/") as session:
            await _Overview(console, session).build()


class _Overview:
    def __init__(self, console: Console, session: Session) -> None:
        self._watched = console.watched_by(session)
        self._session = session
        self._doors: dict[str, tuple[ui.label, ui.label, ui.label]] = {}

    async def build(self) -> None:
        with ui.row().classes("w-full gap-4"):
            self._topics = charts.figure("Topics", "topics")
            self._groups = charts.figure("Groups", "groups")
            self._records = charts.figure("Records", "records")
            self._bytes = charts.figure("On disk", "bytes")
            self._uptime = charts.figure("Up for", "uptime")
        heading("Doors")
        self._told = note("")
        with ui.row().classes("w-full gap-4"):
            for door in _DOORS:
                self._doors[door] = self._door(door)
        with ui.row().classes("w-full gap-4"):
            with ui.card().classes("pl-card col-12 col-md"):
                ui.label("Records written per second").classes("text-subtitle2")
                self._written = charts.lines({}, "Records written per second, by door")
            with ui.card().classes("pl-card col-12 col-md"):
                ui.label("Records given to readers per second").classes("text-subtitle2")
                self._read = charts.lines({}, "Records given to readers per second, by door")
        await self._count()
        await self._draw()
        every(2.0, self._draw)
        every(10.0, self._count)

    def _door(self, door: str) -> tuple[ui.label, ui.label, ui.label]:
        with (
            ui.card().classes("pl-card col-12 col-sm q-pa-md").props(f'data-test="door-{door}"'),
            ui.column().classes("gap-1 w-full"),
        ):
            ui.label(_DOORS[door]).classes("text-weight-medium")
            written = ui.label("–").classes("pl-number")
            read = ui.label("").classes("pl-soft text-caption")
            where = ui.label("").classes("pl-soft text-caption")
        return written, read, where

    async def _count(self) -> None:
        lines = await self._session.ask(administration.topics)
        groups = await self._session.ask(listed)
        self._topics.set_text(f"{len(lines):,}")
        self._groups.set_text(f"{len(groups):,}")
        self._records.set_text(charts.short_number(sum(line.records for line in lines)))
        self._bytes.set_text(charts.size_text(sum(line.bytes for line in lines)))

    async def _draw(self) -> None:
        try:
            history = await self._watched.history()
        except (NotTold, Refused) as error:
            # The rest of the page is for everybody.
            self._told.set_text(str(error))
            history = History(Lags())
        else:
            self._told.set_text("")
        self._show_history(history)

    def _show_history(self, history: History) -> None:
        if history.started_ms:
            self._uptime.set_text(charts.duration_text((now_ms() - history.started_ms) / 1000))
        for door, (written, read, where) in self._doors.items():
            points = history.doors.get(door)
            listeners = history.listeners.get(door)
            if history.started_ms and not listeners:
                where.set_text("not listening")
            elif listeners:
                where.set_text(", ".join(listeners.values()))
            if points:
                self._show(points[-1], written, read)
            elif not history.started_ms:
                for label, text in ((written, "–"), (read, ""), (where, "")):
                    label.set_text(text)
        for chart, counter in ((self._written, "received_records"), (self._read, "sent_records")):
            series = {
                title: [(one.time_ms, one.rates[counter]) for one in history.doors[door]]
                for door, title in _DOORS.items()
                if door in history.doors
            }
            charts.redraw(chart, series)

    def _show(self, latest: DoorRates, written: ui.label, read: ui.label) -> None:
        rates = latest.rates
        written.set_text(f"{charts.short_number(rates['received_records'])}/s in")
        read.set_text(
            f"{charts.short_number(rates['sent_records'])}/s out · "
            f"{charts.size_text(rates['received_bytes'] + rates['sent_bytes'])}/s · "
            f"{latest.connections} {'connection' if latest.connections == 1 else 'connections'}"
        )

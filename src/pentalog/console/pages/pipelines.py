"""Pipelines: state, lag, rate, dead letters, and the ledger of their tables."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from nicegui import ui

from pentalog.clients.kafka import KafkaFailed
from pentalog.console.application import Console, now_ms
from pentalog.console.identity import Session
from pentalog.console.pages import charts
from pentalog.console.pages.frame import BUILD_TIMEOUT_S, every, failure, frame, guarded, note
from pentalog.console.pipelines import PipelinesNotShown, announced, describe
from pentalog.console.records import time_text

_REFRESH_S: Final = 3.0
_NONE: Final = (
    "No pipeline has told this broker of itself yet: `pentalog table run pipeline.toml` does while"
    " it runs, and `pentalog table init pipeline.toml` writes one to begin with. Pipelines that"
    " never ran are shown too if their files are named by --console-pipelines pipeline.toml."
)
_COLOURS: Final = {"running": "positive", "paused": "warning"}
_COVERED: Final = (
    ("layer", "Table"),
    ("partition", "Partition"),
    ("start", "From"),
    ("end", "To"),
    ("lag", "Lag"),
)
_LEDGER: Final = (
    ("time", "Committed (UTC)"),
    ("layer", "Table"),
    ("batch", "Batch"),
    ("rows", "Rows"),
    ("ranges", "Offsets"),
)


def register(console: Console) -> None:
    @ui.page("/pipelines", response_timeout=BUILD_TIMEOUT_S)
    @guarded(console)
    async def page() -> None:
        with frame(console, "Pipelines", "/pipelines") as session:
            await session.check_operator()
            await _Pipelines(console, session).build()


class _Pipelines:
    def __init__(self, console: Console, session: Session) -> None:
        self._console = console
        self._session = session
        self._shown: dict[str, _Pipeline] = {}

    async def build(self) -> None:
        self._note = note("")
        self._whole = ui.column().classes("w-full gap-4")
        await self._refresh()
        every(_REFRESH_S, self._refresh)

    async def _refresh(self) -> None:
        files = self._console.place.pipelines
        await self._session.check_operator()
        try:
            found = await asyncio.to_thread(describe, files) if files else []
            told = await self._session.ask(announced)
        except (PipelinesNotShown, KafkaFailed) as error:
            self._note.set_text(str(error))
            return
        # A file tells more than a pipeline that tells of itself.
        by_file = {one["pipeline"] for one in found}
        found += [one for one in told if one["pipeline"] not in by_file]
        self._note.set_text("" if found else _NONE)
        for one in found:
            name, told_in = str(one["pipeline"]), str(one.get("told_in", ""))
            # Several groups may tell of the same name; none may hide another.
            key = f"{name} {told_in}"
            if key not in self._shown:
                with self._whole:
                    self._shown[key] = _Pipeline(self._console, name, told_in)
            try:
                self._shown[key].show(one)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                # The others are shown all the same.
                self._shown[key].show({"failure": f"its state cannot be shown: {error!r}"})


class _Pipeline:
    """One card."""

    def __init__(self, console: Console, name: str, told_in: str) -> None:
        """`told_in` is the group that holds its state; empty if its file is read here."""
        self._console = console
        self._key = f"pipeline {name} {told_in}"
        with ui.card().classes("pl-card q-pa-md").props(f'data-test="pipeline-{name}"'):
            with ui.row().classes("w-full items-center"):
                ui.label(name).classes("text-h6").props("role=heading aria-level=2")
                self._state = ui.badge("").props('data-test="pipeline-state"')
                self._where = ui.label("").classes("pl-soft ellipsis")
                if told_in:
                    note(f"as told in group {told_in}").classes("ellipsis")
            self._failure = failure("")
            with ui.row().classes("w-full gap-4"):
                self._lag = charts.figure("Lag, records", "pipeline-lag")
                self._rate = charts.figure("Rows per second", "pipeline-rate")
                self._last = charts.figure("Last batch", "pipeline-batch")
                self._dead = charts.figure("Dead letters", "pipeline-dead")
            self._chart = charts.lines({}, f"Lag of {name} over time", whole=True)
            with ui.expansion("Tables and ledger", value=True).classes("w-full"):
                right = ("start", "end", "lag")
                self._covered = ui.table(
                    rows=[], columns=charts.columns(_COVERED, right=right), row_key="id",
                    pagination={"rowsPerPage": 10},
                ).classes("w-full").props('flat dense data-test="pipeline-tables"')  # fmt: skip
                self._ledger = ui.table(
                    rows=[], columns=charts.columns(_LEDGER, right=("batch", "rows")),
                    row_key="id", pagination={"rowsPerPage": 10},
                ).classes("w-full").props('flat dense data-test="pipeline-ledger"')  # fmt: skip

    def show(self, one: dict[str, Any]) -> None:
        text = str(one.get("failure", ""))
        self._failure.set_visibility(bool(text))
        if text:
            self._failure.default_slot.children[-1].set_text(text)  # type: ignore[attr-defined]
            return
        state = str(one["state"])
        self._state.set_text(state)
        self._state.props(f"color={_COLOURS.get(state, 'secondary')}")
        self._where.set_text(f"{', '.join(one['topics'])} into {one['into']}")
        self._show_lag(one["lag"])
        last = one["last_batch"]
        self._rate.set_text(charts.short_number(float(last.get("rows_per_second", 0))))
        batch = f"{last.get('rows', 0):,} rows in {last.get('batch_ms', 0)} ms" if last else "none"
        self._last.set_text(batch)
        self._dead.set_text(f"{one['dead_letters']:,}")
        self._show_tables(one)

    def _show_lag(self, lag: dict[str, Any]) -> None:
        if "records" not in lag:
            self._lag.set_text("unknown")
            return
        points = self._console.lags.note(self._key, now_ms(), lag["records"])
        self._lag.set_text(f"{lag['records']:,}")
        charts.redraw(self._chart, {"lag": points})

    def _show_tables(self, one: dict[str, Any]) -> None:
        behind = one["lag"].get("by", {})
        self._covered.rows = [
            {
                "id": f"{layer} {at}",
                "layer": layer,
                "partition": at,
                "start": start,
                "end": end,
                "lag": behind.get(at, "") if layer == "bronze" else "",
            }
            for layer, table in one["tables"].items()
            for at, (start, end) in table["covered"].items()
        ]
        self._ledger.rows = [
            {
                "id": f"{entry['layer']} {entry['batch']} {entry['time_ms']}",
                "time": time_text(entry["time_ms"]),
                "layer": entry["layer"],
                "batch": entry["batch"],
                "rows": entry["rows"],
                "ranges": entry["ranges"],
            }
            for entry in one["ledger"]
        ]

"""The broker's metrics over the last half hour, without anything else installed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

from nicegui import ui

from pentalog.console.application import Console
from pentalog.console.history import Point, per_second
from pentalog.console.observed import NotTold
from pentalog.console.pages import charts
from pentalog.console.pages.frame import BUILD_TIMEOUT_S, every, frame, guarded, heading, note
from pentalog.console.watched import Watched

_CHARTS: Final = (
    ("Records written per second", ("pentalog_appended_records_total",)),
    ("Bytes written per second", ("pentalog_appended_bytes_total", "pentalog_journal_bytes_total")),
    ("Requests per second, by door", ("pentalog_door_requests_total",)),
    ("Connections, by door", ("pentalog_connections",)),
    ("Time per sync, milliseconds", ("pentalog_sync_seconds",)),
    ("Delay of the event loop, milliseconds", ("pentalog_loop_delay_seconds",)),
    ("Lag of groups, records", ("pentalog_group_lag_records",)),
    ("Size of topics, bytes", ("pentalog_topic_size_bytes",)),
)
_COLUMNS: Final = (("name", "Metric"), ("labels", "Of"), ("value", "Now"), ("rate", "Per second"))
_LINES_MAX: Final = 12
_REFRESH_S: Final = 10.0

Series: TypeAlias = Mapping[tuple[str, str], Collection[Point]]


def register(console: Console) -> None:
    @ui.page("/metrics", response_timeout=BUILD_TIMEOUT_S)
    @guarded(console)
    async def page() -> None:
        with frame(console, "Metrics", "/metrics") as session:
            await _Metrics(console.watched_by(session)).build()


class _Metrics:
    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._charts: list[tuple[ui.echart, tuple[str, ...]]] = []

    async def build(self) -> None:
        try:
            await self._watched.history()
        except NotTold as error:
            note(str(error))
            return
        with ui.element("div").classes("row q-col-gutter-md w-full"):
            for title, names in _CHARTS:
                with ui.element("div").classes("col-12 col-md-6"), ui.card().classes("pl-card"):
                    ui.label(title).classes("text-subtitle2")
                    self._charts.append((charts.lines({}, title), names))
        heading("All of them")
        find = ui.input(placeholder="Filter").props(
            'dense outlined clearable data-find aria-label="Filter metrics"'
        )
        self._table = ui.table(
            rows=[], columns=charts.columns(_COLUMNS, right=("value", "rate")), row_key="id",
            pagination={"rowsPerPage": 25},
        ).classes("w-full").props('flat dense data-test="metrics"')  # fmt: skip
        self._table.bind_filter_from(find, "value")
        await self._draw()
        every(_REFRESH_S, self._draw)

    async def _draw(self) -> None:
        series = (await self._watched.history()).series
        for chart, names in self._charts:
            charts.redraw(chart, _lines(series, names))
        self._table.rows = [
            _row(name, labels, list(points)) for (name, labels), points in sorted(series.items())
        ]


def _lines(history: Series, names: tuple[str, ...]) -> dict[str, list[Point]]:
    """Totals as rates, histograms as means, at most so many lines, the largest first."""
    found: dict[str, list[Point]] = {}
    for (name, labels), points in history.items():
        if name in names:
            total = name.endswith("_total")
            title = labels.removeprefix("door ") or name.removeprefix("pentalog_")
            found[title] = per_second(points) if total else list(points)
        elif name.removesuffix("_sum") in names and name.endswith("_sum"):
            counts = history.get((name.removesuffix("_sum") + "_count", labels), ())
            found["mean"] = _means(list(points), list(counts))
    largest = sorted(found, key=lambda one: -max((p.value for p in found[one]), default=0))
    return {one: found[one] for one in sorted(largest[:_LINES_MAX])}


def _means(sums: Sequence[Point], counts: Sequence[Point]) -> list[Point]:
    """Seconds per occurrence between two looks, in milliseconds."""
    found = []
    pairs = zip(sums, counts, strict=False)
    for (sum_before, count_before), (sum_after, count_after) in pairwise(pairs):
        count = count_after.value - count_before.value
        if count > 0:
            mean = (sum_after.value - sum_before.value) / count
            found.append(Point(sum_after.time_ms, 1000 * mean))
    return found


def _row(name: str, labels: str, points: Sequence[Point]) -> dict[str, Any]:
    growing = name.endswith(("_total", "_count", "_sum"))
    rates = per_second(points[-2:]) if growing else []
    return {
        "id": f"{name} {labels}",
        "name": name,
        "labels": labels,
        "value": charts.short_number(points[-1].value),
        "rate": charts.short_number(rates[-1].value) if rates else "",
    }

"""Lines over time, and numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from nicegui import ui

_GREY: Final = "#8a93a6"
_PALETTE: Final = (
    "#4c7dff", "#20b486", "#f59f00", "#d6459b", "#8e6cf0", "#0ea5b7", "#e8590c", "#74808f",
)  # fmt: skip
_SPAN_MS_MIN: Final = 60_000
_UNITS: Final = ("", "k", "M", "G", "T", "P")

Points = Iterable[tuple[float, float]]


def lines(series: Mapping[str, Points], title: str, *, whole: bool = False) -> ui.echart:
    """A chart of values by time in milliseconds; of whole numbers, if so."""
    chart = ui.echart(
        {
            "animation": False,
            "color": list(_PALETTE),
            "textStyle": {"color": _GREY},
            "grid": {"left": 16, "right": 32, "top": 34, "bottom": 8, "containLabel": True},
            "title": {
                "show": True,
                "text": "nothing measured yet",
                "left": "center",
                "top": "middle",
                "textStyle": {"color": _GREY, "fontSize": 13, "fontWeight": "normal"},
            },
            "legend": {"top": 0, "type": "scroll", "textStyle": {"color": _GREY}},
            "tooltip": {"trigger": "axis", "confine": True},
            "xAxis": {
                "type": "time",
                "show": False,
                "axisLabel": {"color": _GREY, "hideOverlap": True},
            },
            "yAxis": {
                "type": "value",
                "min": 0,
                "minInterval": 1 if whole else 0,
                "axisLabel": {"color": _GREY},
                "splitLine": {"lineStyle": {"color": "rgba(128,128,140,.2)"}},
            },
            "series": shaped(series),
        }
    )
    chart.classes("w-full").style("height: 220px")
    chart.props("role=img")
    chart.props["aria-label"] = title  # may hold anything: a group's name, quotes
    return chart


def shaped(series: Mapping[str, Points]) -> list[dict[str, Any]]:
    """Series as the chart wants them."""
    return [
        {
            "name": name,
            "type": "line",
            "showSymbol": len(points) < 2,
            "lineStyle": {"width": 2},
            "data": [[time_ms, round(value, 2)] for time_ms, value in points],
        }
        for name, points in ((name, list(several)) for name, several in series.items())
    ]


def redraw(chart: ui.echart, series: Mapping[str, Points]) -> None:
    shown = shaped(series)
    chart.options["series"] = shown
    times = [point[0] for one in shown for point in one["data"]]
    if times:
        # One point alone would be drawn in the middle of a day or two.
        chart.options["xAxis"]["show"] = True
        chart.options["title"]["show"] = False
        chart.options["xAxis"]["min"] = min(*times, max(times) - _SPAN_MS_MIN)
        chart.options["xAxis"]["max"] = max(times)
    chart.update()


def short_number(value: float) -> str:
    """1234567 is 1.23 M."""
    for unit in _UNITS:
        if abs(value) < 999.5 or unit == _UNITS[-1]:
            return f"{value:.3g} {unit}".rstrip() if unit else f"{value:.3g}"
        value /= 1000
    return str(value)


def size_text(count: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return str(count)


def duration_text(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86400:.1f} days"


def figure(title: str, name: str = "") -> ui.label:
    """A number on a card; the label to set."""
    with ui.card().classes("pl-card pl-figure q-pa-md col"), ui.column().classes("gap-0"):
        ui.label(title).classes("pl-soft text-caption")
        return ui.label("–").classes("pl-number").props(f'data-test="{name}"' if name else "")


def columns(names: Sequence[tuple[str, str]], *, right: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Columns of a table from (field, title)."""
    return [
        {
            "name": field,
            "label": title,
            "field": field,
            "sortable": True,
            "align": "right" if field in right else "left",
        }
        for field, title in names
    ]

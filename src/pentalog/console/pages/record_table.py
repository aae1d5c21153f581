"""Records as lines of a table, and one of them in full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from nicegui import ui

from pentalog.console.pages.charts import columns
from pentalog.console.pages.frame import note
from pentalog.console.pages.produce import Produce
from pentalog.console.records import Row, full, kind_of, short, time_text

_COLUMNS: Final = (
    ("time", "Time (UTC)"),
    ("partition", "Partition"),
    ("offset", "Offset"),
    ("key", "Key"),
    ("value", "Value"),
    ("door", "Door"),
)
_OPEN_CELL: Final = (
    '<q-td :props="props"><q-btn flat dense no-caps class="pl-mono" color="primary"'
    ' :label="props.value" :aria-label="\'Open record \' + props.value"'
    " @click=\"() => $parent.$emit('show', props.row)\" /></q-td>"
)
_TEXT_CELL: Final = (
    '<q-td :props="props"><div class="pl-mono pl-cell" :title="props.value">{{ props.value }}</div>'
    "</q-td>"
)


def message_table(on_show: Callable[[dict[str, Any]], Any]) -> ui.table:
    """An empty table of records whose offsets open them."""
    table = ui.table(
        rows=[], columns=columns(_COLUMNS, right=("partition", "offset")), row_key="id",
        pagination={"rowsPerPage": 50},
    ).classes("w-full")  # fmt: skip
    table.props('flat dense data-test="messages" no-data-label="No records"')
    table.add_slot("body-cell-offset", _OPEN_CELL)
    table.add_slot("body-cell-key", _TEXT_CELL)
    table.add_slot("body-cell-value", _TEXT_CELL)
    table.on("show", lambda event: on_show(event.args))
    return table


def shown(row: Row) -> dict[str, Any]:
    """A record as a line of the table."""
    return {
        "id": f"{row.at.index}-{row.offset}",
        "time": time_text(row.timestamp_ms),
        "partition": row.at.index,
        "offset": row.offset,
        "key": "" if row.key is None else short(row.key, 40),
        "value": short(row.value),
        "door": row.door,
    }


def record_dialog(row: Row, produce: Produce | None) -> None:
    """One record with everything it has."""
    with (
        ui.dialog() as dialog,
        ui.card().classes("w-full").style("max-width: 60rem").props('data-test="record"'),
    ):
        ui.label(f"{row.at} · offset {row.offset}").classes("text-h6")
        note(f"{time_text(row.timestamp_ms)} UTC · written through {row.door}")
        if row.headers:
            _part("Headers", row.headers)
        _code("Key", row.key)
        _code("Value", row.value)
        with ui.row().classes("w-full justify-end"):
            if produce is not None:
                ui.button("Send again", icon="o_send", on_click=lambda: produce.open(row)).props(
                    "flat"
                )
            ui.button("Close", on_click=dialog.close).props("unelevated autofocus")
    dialog.open()


def _part(title: str, headers: Sequence[tuple[str, bytes | None]]) -> None:
    ui.label(title).classes("text-subtitle2")
    text = "\n".join(f"{name}: {short(value, 400)}" for name, value in headers)
    ui.label(text).classes("pl-code pl-mono")


def _code(title: str, data: bytes | None) -> None:
    size = "" if data is None else f", {len(data):,} bytes"
    ui.label(f"{title} ({kind_of(data)}{size})").classes("text-subtitle2")
    if data:
        ui.label(full(data)).classes("pl-code pl-mono")

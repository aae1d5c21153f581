"""One topic: its messages, its partitions and segments, its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from nicegui import ui

from pentalog.console import administration
from pentalog.console.administration import PartitionLine, Setting
from pentalog.console.application import Console
from pentalog.console.identity import Session
from pentalog.console.pages import charts
from pentalog.console.pages.frame import BUILD_TIMEOUT_S, attempted, frame, guarded, heading, note
from pentalog.console.pages.messages import Messages
from pentalog.console.pages.produce import Produce
from pentalog.console.records import time_text
from pentalog.log.reader import DirectoryReader, DirectoryUnreadable, Swapping
from pentalog.log.segment import segment_path
from pentalog.model.types import Partition

_VIEWS: Final = ("messages", "partitions", "settings")
_SEGMENTS_MAX: Final = 5_000


def register(console: Console) -> None:
    @ui.page("/topics/{name:path}", response_timeout=BUILD_TIMEOUT_S)
    @guarded(console)
    async def topic(name: str, view: str = "messages", called: str = "") -> None:
        name = name or called
        with frame(console, name, "/topics") as session:
            await _Topic(session, name).build(view if view in _VIEWS else _VIEWS[0])


class _Topic:
    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._name = name

    async def build(self, view: str) -> None:
        lines = await self._lines()
        indexes = [line.at.index for line in lines]
        produce = Produce(self._session, self._name, indexes)
        with ui.row().classes("w-full items-center"):
            ui.label(self._name).classes("text-h5 ellipsis").props("role=heading aria-level=1")
            ui.space()
            ui.button("Produce", icon="o_send", on_click=produce.open).props(
                'unelevated data-test="produce"'
            )
            ui.button("Delete", icon="o_delete", on_click=self._delete).props(
                'outline color=negative data-test="delete-topic"'
            )
        with ui.tabs().props("align=left dense no-caps") as tabs:
            for one in _VIEWS:
                ui.tab(one, one.capitalize()).props(f'data-test="tab-{one}"')
        with ui.tab_panels(tabs, value=view).classes("w-full bg-transparent"):
            with ui.tab_panel("messages").style("padding: 0"):
                await Messages(self._session, self._name, indexes, produce).build()
            with ui.tab_panel("partitions").style("padding: 0"):
                self._partitions(lines)
            with ui.tab_panel("settings").style("padding: 0"):
                await self._settings()

    async def _lines(self) -> list[PartitionLine]:
        return await self._session.ask(
            lambda cluster: administration.partitions(cluster, self._name)
        )

    def _partitions(self, lines: list[PartitionLine]) -> None:
        names = (
            ("partition", "Partition"),
            ("start", "First offset"),
            ("end", "Next offset"),
            ("records", "Offsets kept"),
            ("size", "On disk"),
        )
        rows = [
            {
                "partition": line.at.index,
                "start": line.start,
                "end": line.end,
                "records": line.end - line.start,
                "size": charts.size_text(line.bytes),
            }
            for line in lines
        ]
        right = [name for name, _ in names]
        with ui.row().classes("w-full items-center"):
            heading("Partitions")
            ui.space()
            count = ui.number(value=len(lines) + 1, min=len(lines) + 1, precision=0).props(
                'dense outlined aria-label="Partitions after growing" style="width: 6rem"'
            )
            ui.button("Grow", on_click=lambda: self._grow(int(count.value))).props("outline")
        ui.table(
            rows=rows, columns=charts.columns(names, right=right), row_key="partition",
            pagination={"rowsPerPage": 25},
        ).classes("w-full").props('flat data-test="partitions"')  # fmt: skip
        heading("Segments")
        self._segments([line.at for line in lines])

    def _segments(self, places: list[Partition]) -> None:
        data = self._session.place.data
        if data is None:
            note("The data directory is not on this machine, so segments are not shown.")
            return
        names = (
            ("partition", "Partition"),
            ("base", "First offset"),
            ("size", "Size"),
            ("changed", "Last written"),
            ("file", "File"),
        )
        try:
            rows = segment_rows(data, places)
        except (DirectoryUnreadable, Swapping, OSError) as error:
            note(f"The segments cannot be read at present: {error}")
            return
        ui.table(
            rows=rows, columns=charts.columns(names, right=("partition", "base", "size")),
            row_key="file", pagination={"rowsPerPage": 25},
        ).classes("w-full").props('flat data-test="segments"')  # fmt: skip

    async def _grow(self, count: int) -> None:
        asked = self._session.ask(
            lambda cluster: administration.grow_topic(cluster, self._name, count)
        )
        if await attempted(asked, f"{self._name} has {count} partitions"):
            ui.navigate.reload()

    async def _settings(self) -> None:
        names = (("name", "Setting"), ("value", "Value"), ("source", "From"))
        self._setting_table = ui.table(
            rows=await self._setting_rows(), columns=charts.columns(names), row_key="name",
            pagination={"rowsPerPage": 50},
        ).classes("w-full").props('flat data-test="settings"')  # fmt: skip
        self._setting_table.add_slot(
            "body-cell-name",
            '<q-td :props="props"><q-btn flat dense no-caps align="left" :label="props.value"'
            " :data-test=\"'setting-' + props.value\""
            " @click=\"() => $parent.$emit('change', props.row)\" /></q-td>",
        )
        self._setting_table.on("change", lambda event: self._change(event.args))

    async def _setting_rows(self) -> list[dict[str, Any]]:
        found = await self._session.ask(
            lambda cluster: administration.settings(cluster, self._name)
        )
        return [_setting_row(one) for one in found]

    def _change(self, row: dict[str, Any]) -> None:
        name = str(row["name"])
        with ui.dialog() as dialog, ui.card().classes("w-full").style("max-width: 28rem"):
            ui.label(name).classes("text-h6")
            value = ui.input("Value", value=str(row["value"])).classes("w-full")
            value.props('autofocus data-test="setting-value"')

            async def apply(text: str | None) -> None:
                asked = self._session.ask(
                    lambda cluster: administration.set_setting(cluster, self._name, name, text)
                )
                if await attempted(asked, f"{name} is changed"):
                    dialog.close()
                    self._setting_table.rows = await self._setting_rows()

            with ui.row().classes("w-full justify-end"):
                ui.button("Back to the default", on_click=lambda: apply(None)).props("flat")
                ui.button("Change", on_click=lambda: apply(value.value)).props(
                    'unelevated data-test="setting-apply"'
                )
        dialog.open()

    def _delete(self) -> None:
        with ui.dialog() as dialog, ui.card().style("max-width: 28rem"):
            ui.label(f"Delete {self._name}?").classes("text-h6")
            note("Its records and its settings are gone then. Type its name to go on.")
            typed = ui.input("Name").classes("w-full").props('autofocus data-test="delete-name"')

            async def delete() -> None:
                asked = self._session.ask(
                    lambda cluster: administration.delete_topic(cluster, self._name)
                )
                if await attempted(asked):
                    ui.navigate.to("/topics")

            with ui.row().classes("w-full justify-end"):
                ui.button("Cancel", on_click=dialog.close).props("flat")
                button = ui.button("Delete", on_click=delete)
                button.props('unelevated color=negative data-test="delete-really"')
                button.bind_enabled_from(typed, "value", lambda text: text == self._name)
        dialog.open()


def _setting_row(one: Setting) -> dict[str, Any]:
    return {"name": one.name, "value": one.value, "source": one.source}


def segment_rows(data: Path, places: list[Partition]) -> list[dict[str, Any]]:
    """Every segment file of these partitions."""
    reader = DirectoryReader(data)
    rows: list[dict[str, Any]] = []
    for at in places:
        partition = reader.partition(at)
        for base in partition.bases():
            path = segment_path(partition.directory, base, ".log")
            size, changed_s = reader.files.stat(path)
            rows.append(
                {
                    "partition": at.index,
                    "base": base,
                    "size": charts.size_text(size),
                    "changed": time_text(int(changed_s * 1000)),
                    "file": f"{partition.directory.name}/{path.name}",
                }
            )
            if len(rows) >= _SEGMENTS_MAX:
                return rows
    return rows

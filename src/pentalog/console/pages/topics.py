"""All topics, and making a new one."""

from __future__ import annotations

from typing import Any, Final

from nicegui import ui

from pentalog.console import administration
from pentalog.console.application import Console
from pentalog.console.dead_letters import SUFFIX
from pentalog.console.identity import Session
from pentalog.console.pages import charts
from pentalog.console.pages.frame import (
    BUILD_TIMEOUT_S,
    attempted,
    every,
    frame,
    guarded,
    topic_address,
)

_COLUMNS: Final = (
    ("name", "Topic"),
    ("partitions", "Partitions"),
    ("records", "Records"),
    ("size", "On disk"),
)


def register(console: Console) -> None:
    @ui.page("/topics", response_timeout=BUILD_TIMEOUT_S)
    @guarded(console)
    async def topics() -> None:
        with frame(console, "Topics", "/topics") as session:
            await _Topics(session).build()


class _Topics:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def build(self) -> None:
        with ui.row().classes("w-full items-center"):
            find = ui.input(placeholder="Filter").props(
                'dense outlined clearable data-find data-test="filter" aria-label="Filter topics"'
            )
            ui.space()
            ui.button("New topic", icon="add", on_click=self._create).props(
                'unelevated data-test="new-topic"'
            )
        self._table = ui.table(
            rows=await self._rows(), columns=charts.columns(_COLUMNS, right=_NUMBERS),
            row_key="name", pagination={"rowsPerPage": 25, "sortBy": "name"},
        ).classes("w-full").props('flat data-test="topics"')  # fmt: skip
        self._table.add_slot(
            "body-cell-name",
            '<q-td :props="props"><a class="pl-link" :href="props.row.address">'
            "{{ props.value }}</a></q-td>",
        )
        self._table.bind_filter_from(find, "value")
        every(5.0, self._refresh)

    async def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "name": line.name,
                "partitions": line.partitions,
                "records": f"{line.records:,}",
                "size": charts.size_text(line.bytes),
                "address": topic_address(line.name),
            }
            for line in await self._session.ask(administration.topics)
            if not line.name.endswith(SUFFIX) or line.records
        ]

    async def _refresh(self) -> None:
        self._table.rows = await self._rows()

    async def _create(self) -> None:
        with ui.dialog() as dialog, ui.card().classes("w-full").style("max-width: 32rem"):
            ui.label("New topic").classes("text-h6")
            name = ui.input("Name").classes("w-full").props('autofocus data-test="topic-name"')
            count = ui.number("Partitions", value=1, min=1, max=10_000, precision=0)
            count.classes("w-full").props('data-test="topic-partitions"')
            settings = ui.textarea(
                "Settings, one a line", placeholder="retention.ms=604800000\ncleanup.policy=delete"
            ).classes("w-full")

            async def create() -> None:
                wanted = _settings(settings.value or "")
                made = self._session.ask(
                    lambda cluster: cluster.create_topic(
                        (name.value or "").strip(), int(count.value or 1), wanted
                    )
                )
                if await attempted(made, f"Topic {name.value} is there"):
                    dialog.close()
                    await self._refresh()

            with ui.row().classes("w-full justify-end"):
                ui.button("Cancel", on_click=dialog.close).props("flat")
                ui.button("Create", on_click=create).props('unelevated data-test="create"')
            name.on("keydown.enter", create)
        dialog.open()


_NUMBERS: Final = ("partitions", "records", "size")


def _settings(text: str) -> dict[str, str]:
    """`NAME=VALUE` by lines."""
    pairs = (line.partition("=") for line in text.splitlines() if line.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}

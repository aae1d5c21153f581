"""Groups: how far they are, how far they were, and moving them."""

from __future__ import annotations

from typing import Any, Final

from nicegui import ui

from pentalog.clients.kafka import Cluster
from pentalog.clients.kafka.groups import delete, listed
from pentalog.console import administration
from pentalog.console.administration import Group
from pentalog.console.application import Console, now_ms
from pentalog.console.identity import Session
from pentalog.console.pages import charts
from pentalog.console.pages.frame import (
    BUILD_TIMEOUT_S,
    attempted,
    every,
    frame,
    group_address,
    guarded,
    heading,
    note,
)
from pentalog.console.records import parse_time
from pentalog.model.types import Offset, Partition

_WAYS: Final = {
    "earliest": "to the first offset",
    "latest": "to the end",
    "offset": "to an offset",
    "shift": "by so many records",
    "time": "to a time",
}
_LIST: Final = (("name", "Group"), ("state", "State"), ("kind", "Kind"))
_POSITIONS: Final = (
    ("topic", "Topic"),
    ("partition", "Partition"),
    ("committed", "Next offset"),
    ("end", "End"),
    ("lag", "Lag"),
)
_NUMBERS: Final = ("partition", "committed", "end", "lag")
_MEMBERS: Final = (
    ("member_id", "Member"),
    ("client_id", "Client"),
    ("host", "From"),
    ("partitions", "Partitions"),
)


def register(console: Console) -> None:
    @ui.page("/groups", response_timeout=BUILD_TIMEOUT_S)
    @guarded(console)
    async def groups() -> None:
        with frame(console, "Groups", "/groups") as session:
            await _list(session)

    @ui.page("/groups/{name:path}", response_timeout=BUILD_TIMEOUT_S)
    @guarded(console)
    async def group(name: str) -> None:
        with frame(console, name, "/groups") as session:
            await _Group(console, session, name).build()


async def _list(session: Session) -> None:
    async def rows() -> list[dict[str, Any]]:
        return [
            {
                "name": one.name,
                "state": one.state,
                "kind": one.kind,
                "address": group_address(one.name),
            }
            for one in await session.ask(listed)
        ]

    find = ui.input(placeholder="Filter").props(
        'dense outlined clearable data-find aria-label="Filter groups"'
    )
    table = ui.table(
        rows=await rows(), columns=charts.columns(_LIST), row_key="name",
        pagination={"rowsPerPage": 25, "sortBy": "name"},
    ).classes("w-full").props('flat data-test="groups" no-data-label="No groups yet"')  # fmt: skip
    table.add_slot(
        "body-cell-name",
        '<q-td :props="props"><a class="pl-link" :href="props.row.address">{{ props.value }}</a>'
        "</q-td>",
    )
    table.bind_filter_from(find, "value")

    async def refresh() -> None:
        table.rows = await rows()

    every(5.0, refresh)


class _Group:
    def __init__(self, console: Console, session: Session, name: str) -> None:
        self._console = console
        self._session = session
        self._name = name

    async def build(self) -> None:
        with ui.row().classes("w-full items-center"):
            ui.label(self._name).classes("text-h5 ellipsis").props("role=heading aria-level=1")
            ui.space()
            ui.button("Seek", icon="o_fast_rewind", on_click=self._seek).props(
                'unelevated data-test="seek"'
            )
            ui.button("Delete", icon="o_delete", on_click=self._delete).props(
                "outline color=negative"
            )
        with ui.row().classes("w-full gap-4"):
            self._lag = charts.figure("Lag", "lag")
            self._state = charts.figure("State", "group-state")
            self._count = charts.figure("Members", "member-count")
        with ui.card().classes("pl-card"):
            ui.label("Lag over time").classes("text-subtitle2")
            self._chart = charts.lines({}, f"Lag of {self._name} over time", whole=True)
        heading("Offsets")
        self._table = ui.table(
            rows=[], columns=charts.columns(_POSITIONS, right=_NUMBERS),
            row_key="id", pagination={"rowsPerPage": 25},
        ).classes("w-full").props('flat data-test="positions"')  # fmt: skip
        heading("Members")
        self._members = ui.table(
            rows=[], columns=charts.columns(_MEMBERS), row_key="member_id",
            pagination={"rowsPerPage": 25},
        ).classes("w-full").props('flat no-data-label="Nobody reads as this group"')  # fmt: skip
        await self._refresh()
        every(2.0, self._refresh)

    async def _ask(self) -> Group:
        return await self._session.ask(lambda cluster: administration.group(cluster, self._name))

    async def _refresh(self) -> None:
        found = await self._ask()
        points = self._console.lags.note(f"group {self._name}", now_ms(), found.lag)
        self._lag.set_text(f"{found.lag:,}")
        self._state.set_text(found.state)
        self._count.set_text(str(len(found.members)))
        self._table.rows = [
            {
                "id": str(one.at),
                "topic": one.at.topic,
                "partition": one.at.index,
                "committed": one.committed,
                "end": one.end,
                "lag": one.lag,
            }
            for one in found.positions
        ]
        self._members.rows = [
            {
                "member_id": one.member_id,
                "client_id": one.client_id,
                "host": one.host,
                "partitions": ", ".join(str(at) for at in one.partitions[:20]),
            }
            for one in found.members
        ]
        charts.redraw(self._chart, {"lag": points})

    async def _seek(self) -> None:
        found = await self._ask()
        with ui.dialog() as dialog, ui.card().classes("w-full").style("max-width: 44rem"):
            ui.label(f"Move {self._name}").classes("text-h6")
            note("The broker refuses this while the group has members.")
            with ui.row().classes("w-full items-center"):
                way = ui.select(_WAYS, value="earliest", label="Where").classes("col")
                way.props('data-test="seek-way"')
                number = ui.input("Offset, number or time", value="0").classes("col")
                number.props('data-test="seek-number"')
                number.bind_visibility_from(
                    way, "value", lambda one: one in ("offset", "shift", "time")
                )
            topics = sorted({one.at.topic for one in found.positions})
            topic = ui.select(["all topics", *topics], value="all topics", label="Topic")
            plan = _PlanTable()

            async def planned() -> dict[Partition, tuple[Offset, Offset]]:
                wanted = parse_time(number.value) if way.value == "time" else _number(number.value)

                def ask(cluster: Cluster) -> dict[Partition, tuple[Offset, Offset]]:
                    now = administration.group(cluster, self._name)
                    return administration.planned_seek(
                        cluster, now, to=str(way.value), number=wanted
                    )

                moves = await self._session.ask(ask)
                return {
                    at: move
                    for at, move in moves.items()
                    if topic.value in ("all topics", at.topic)
                }

            async def preview() -> None:
                async def show() -> None:
                    plan.show(await planned())

                await attempted(show())

            async def apply() -> None:
                async def move() -> None:
                    moves = await planned()
                    plan.show(moves)
                    offsets = {at: after for at, (_, after) in moves.items()}
                    await self._session.ask(
                        lambda cluster: administration.seek(cluster, self._name, offsets)
                    )

                if await attempted(move(), f"{self._name} is moved"):
                    dialog.close()
                    await self._refresh()

            with ui.row().classes("w-full justify-end"):
                ui.button("Cancel", on_click=dialog.close).props("flat")
                ui.button("Show what would change", on_click=preview).props(
                    'outline data-test="seek-preview"'
                )
                ui.button("Move", on_click=apply).props('unelevated data-test="seek-apply"')
        dialog.open()

    def _delete(self) -> None:
        with ui.dialog() as dialog, ui.card().style("max-width: 28rem"):
            ui.label(f"Delete {self._name}?").classes("text-h6")
            note("Its offsets are gone then; the broker refuses this while it has members.")

            async def really() -> None:
                asked = self._session.ask(lambda cluster: delete(cluster, [self._name]))
                if await attempted(asked):
                    ui.navigate.to("/groups")

            with ui.row().classes("w-full justify-end"):
                ui.button("Cancel", on_click=dialog.close).props("flat")
                ui.button("Delete", on_click=really).props("unelevated color=negative")
        dialog.open()


class _PlanTable:
    """What a seek would do, before it is done."""

    def __init__(self) -> None:
        names = (("at", "Partition"), ("before", "Now"), ("after", "Then"), ("change", "Change"))
        self._table = ui.table(
            rows=[], columns=charts.columns(names, right=("before", "after", "change")),
            row_key="at", pagination={"rowsPerPage": 10},
        ).classes("w-full").props('flat dense data-test="seek-plan"')  # fmt: skip
        self._table.set_visibility(False)

    def show(self, moves: dict[Partition, tuple[Offset, Offset]]) -> None:
        self._table.rows = [
            {"at": str(at), "before": before, "after": after, "change": f"{after - before:+,}"}
            for at, (before, after) in sorted(moves.items())
        ]
        self._table.set_visibility(True)


def _number(text: str) -> int:
    try:
        return int(text or "0")
    except ValueError:
        raise ValueError(f"{text!r} is no number; write one such as 100 or -100") from None

"""Who is connected, and the frames of one connection as they pass."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from nicegui import background_tasks, context, ui

from pentalog.console.application import Console, now_ms
from pentalog.console.identity import OPERATOR_S, Session, explain
from pentalog.console.observed import NotTold
from pentalog.console.pages import charts
from pentalog.console.pages.frame import BUILD_TIMEOUT_S, every, frame, guarded, note
from pentalog.console.records import hex_dump, time_text
from pentalog.console.watched import Watched

_FRAMES_MAX: Final = 300
_COLUMNS: Final = (
    ("id", "Number"),
    ("door", "Door"),
    ("peer", "From"),
    ("client", "Client"),
    ("principal", "User"),
    ("age", "For"),
    ("requests", "Requests"),
    ("errors", "Errors"),
    ("records", "Records in / out"),
    ("bytes", "Bytes in / out"),
)
_FRAMES: Final = (
    ("time", "Time (UTC)"),
    ("way", ""),
    ("name", "Frame"),
    ("version", "Version"),
    ("correlation", "Correlation"),
    ("topic", "Topic"),
    ("length", "Bytes"),
    ("bytes", "First bytes"),
)
_BYTES_CELL: Final = (
    '<q-td :props="props"><details v-if="props.value"><summary class="pl-mono">'
    '{{ props.row.start }}</summary><pre class="pl-mono q-my-none">{{ props.value }}</pre>'
    "</details></q-td>"
)


def register(console: Console) -> None:
    @ui.page("/connections", response_timeout=BUILD_TIMEOUT_S)
    @guarded(console)
    async def connections() -> None:
        with frame(console, "Connections", "/connections") as session:
            await _list(console.watched_by(session))

    @ui.page("/connections/{number}", response_timeout=BUILD_TIMEOUT_S)
    @guarded(console)
    async def connection(number: int) -> None:
        with frame(console, f"Connection {number}", "/connections") as session:
            await session.check_operator()
            _Inspector(console.watched_by(session), session, number).build()


async def _list(watched: Watched) -> None:
    try:
        found = await watched.connections()
    except NotTold as error:
        note(str(error))
        return
    find = ui.input(placeholder="Filter").props(
        'dense outlined clearable data-find aria-label="Filter connections"'
    )
    right = ("id", "requests", "errors", "records", "bytes")
    table = ui.table(
        rows=_rows(found), columns=charts.columns(_COLUMNS, right=right), row_key="id",
        pagination={"rowsPerPage": 25},
    ).classes("w-full").props('flat dense data-test="connections"')  # fmt: skip
    table.add_slot(
        "body-cell-id",
        '<q-td :props="props"><a v-if="props.row.door !== \'http\'" class="pl-link"'
        " :href=\"'/connections/' + props.value\">{{ props.value }}</a>"
        "<span v-else>{{ props.value }}</span></q-td>",
    )
    table.bind_filter_from(find, "value")

    async def refresh() -> None:
        table.rows = _rows(await watched.connections())

    every(2.0, refresh)


def _rows(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    now = now_ms()
    return [
        {
            "id": one["id"],
            "door": one["door"],
            "peer": one["peer"],
            "client": one["client"] or "",
            "principal": one["principal"] or "",
            "age": charts.duration_text(max(0, now - one["since_ms"]) / 1000),
            "requests": one["requests"],
            "errors": one["request_errors"],
            "records": f"{one['received_records']:,} / {one['sent_records']:,}",
            "bytes": f"{charts.size_text(one['received_bytes'])} / "
            f"{charts.size_text(one['sent_bytes'])}",
        }
        for one in found
    ]


class _Inspector:
    """Frames of one connection, newest first."""

    def __init__(self, watched: Watched, session: Session, number: int) -> None:
        self._watched = watched
        self._session = session
        self._number = number
        self._frames: deque[dict[str, Any]] = deque(maxlen=_FRAMES_MAX)
        self._told = 0
        self._dropped = 0
        self._changed = False

    def build(self) -> None:
        self._who = ui.label(f"Connection {self._number}").classes("text-h5")
        with ui.row().classes("items-center"):
            self._paused = ui.switch("Pause")
            self._state = note("Waiting for frames.").props('data-test="inspector-state"')
        self._table = ui.table(
            rows=[], columns=charts.columns(_FRAMES, right=("length",)), row_key="id",
            pagination={"rowsPerPage": 50},
        ).classes("w-full")  # fmt: skip
        self._table.props('flat dense data-test="frames" no-data-label="No frame has passed yet"')
        self._table.add_slot("body-cell-bytes", _BYTES_CELL)
        task = background_tasks.create(self._follow(), name=f"inspect {self._number}")
        context.client.on_delete(task.cancel)
        ui.timer(0.5, self._draw)
        every(OPERATOR_S, self._session.check_operator)

    async def _follow(self) -> None:
        try:
            async for line in self._watched.frames(self._number):
                self._take(line)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # told in the page's own line
            self._state.set_text(explain(error))

    def _take(self, line: dict[str, Any]) -> None:
        if "connection" in line:
            one = line["connection"]
            self._who.set_text(f"Connection {one['id']}: {one['door']} from {one['peer']}")
        elif "dropped" in line:
            self._dropped += int(line["dropped"])
        elif "ended" in line:
            self._state.set_text(f"Ended: {line['ended']}")
        else:
            self._told += 1
            data = bytes.fromhex(line["hex"] or "")
            self._frames.appendleft(
                {
                    "id": self._told,
                    "time": time_text(line["time_ms"]),
                    "way": "→ in" if line["direction"] == "in" else "← out",
                    "name": line["name"],
                    "version": "" if line["version"] is None else line["version"],
                    "correlation": "" if line["correlation"] is None else line["correlation"],
                    "topic": line["topic"] or "",
                    "length": line["length"],
                    "start": data[:12].hex(" ") if data else "",
                    "bytes": hex_dump(data) if data else "",
                }
            )
            self._changed = True

    def _draw(self) -> None:
        if not self._changed or self._paused.value:
            return
        self._changed = False
        self._table.rows = list(self._frames)
        passed = f", {self._dropped:,} too fast to show" if self._dropped else ""
        self._state.set_text(f"{self._told:,} frames{passed}")

"""Users, rules and quotas, one view for all doors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nicegui import ui

from pentalog.clients.kafka import Cluster, KafkaFailed
from pentalog.console import administration
from pentalog.console.administration import NotOffered, Table
from pentalog.console.application import Console
from pentalog.console.identity import Session
from pentalog.console.pages import charts
from pentalog.console.pages.frame import BUILD_TIMEOUT_S, frame, guarded, heading, note

_PARTS: Final[tuple[tuple[str, Callable[[Cluster], Table]], ...]] = (
    ("Users", administration.users),
    ("Rules", administration.rules),
    ("Quotas", administration.quotas),
)


def register(console: Console) -> None:
    @ui.page("/security", response_timeout=BUILD_TIMEOUT_S)
    @guarded(console)
    async def page() -> None:
        with frame(console, "Security", "/security") as session:
            note(f"You are {session.user or 'not logged in'}; the broker answers what you may see.")
            for title, ask in _PARTS:
                await _part(session, title, ask)


async def _part(session: Session, title: str, ask: Callable[[Cluster], Table]) -> None:
    heading(title)
    try:
        table = await session.ask(ask)
    except (NotOffered, KafkaFailed) as error:
        note(str(error)).props(f'data-test="{title.lower()}-note"')
        return
    rows = [
        {"id": number, **{str(place): cell for place, cell in enumerate(line)}}
        for number, line in enumerate(table.lines)
    ]
    names = [(str(place), name) for place, name in enumerate(table.columns)]
    ui.table(
        rows=rows, columns=charts.columns(names), row_key="id", pagination={"rowsPerPage": 25}
    ).classes("w-full").props(
        f'flat dense data-test="{title.lower()}" no-data-label="No {title.lower()} are set"'
    )

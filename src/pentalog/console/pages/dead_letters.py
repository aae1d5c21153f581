"""Subscriptions, and the records they and pipelines have given up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from nicegui import ui

from pentalog.clients.kafka import Cluster, KafkaFailed
from pentalog.console import administration, browsing, dead_letters
from pentalog.console.application import Console, now_ms
from pentalog.console.dead_letters import SUFFIX, Letter
from pentalog.console.identity import Session
from pentalog.console.observed import NotTold
from pentalog.console.pages import charts
from pentalog.console.pages.frame import (
    BUILD_TIMEOUT_S,
    attempted,
    every,
    frame,
    guarded,
    heading,
    note,
)
from pentalog.console.pages.record_table import record_dialog
from pentalog.console.records import short, time_text
from pentalog.model.types import Offset, Partition

_SHOWN: Final = 200
_LETTERS: Final = (
    ("time", "Time (UTC)"),
    ("source", "From"),
    ("reason", "Reason"),
    ("attempts", "Attempts"),
    ("key", "Key"),
    ("value", "Value"),
    ("replayed", ""),
)
_SUBSCRIPTIONS: Final = (
    ("id", "Subscription"),
    ("topic", "Topic"),
    ("kind", "Kind"),
    ("unsettled", "Not acknowledged"),
    ("behind", "Behind"),
    ("used", "Last used"),
)
_REPLAY_CELL: Final = """
<q-td :props="props">
  <span v-if="props.value" class="pl-soft">{{ props.value }}</span>
  <q-btn v-else outline dense no-caps size="sm" color="primary" label="Replay" data-test="replay"
    class="q-px-sm" @click="() => $parent.$emit('replay', props.row)" />
  <q-btn flat dense no-caps size="sm" label="Open" class="q-ml-sm"
    @click="() => $parent.$emit('show', props.row)" />
</q-td>
"""


def register(console: Console) -> None:
    @ui.page("/dead-letters", response_timeout=BUILD_TIMEOUT_S)
    @guarded(console)
    async def page(topic: str = "") -> None:
        with frame(console, "Dead letters", "/dead-letters") as session:
            heading("Subscriptions")
            await _subscriptions(console, session)
            heading("Dead letters")
            await _DeadLetters(console, session).build(topic)


async def _subscriptions(console: Console, session: Session) -> None:
    watched = console.watched_by(session)
    try:
        found = await watched.subscriptions()
    except (NotTold, KafkaFailed) as error:
        note(str(error))
        return
    right = ("id", "unsettled", "behind")
    table = ui.table(
        rows=_subscription_rows(found), columns=charts.columns(_SUBSCRIPTIONS, right=right),
        row_key="id", pagination={"rowsPerPage": 10},
    ).classes("w-full")  # fmt: skip
    table.props('flat dense data-test="subscriptions" no-data-label="No subscriptions"')

    async def refresh() -> None:
        table.rows = _subscription_rows(await watched.subscriptions())

    every(3.0, refresh)


def _subscription_rows(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    now = now_ms()
    return [
        {
            "id": one["id"],
            "topic": one["topic"],
            "kind": "acknowledged" if one["leased"] else "delivered once",
            "unsettled": one["unsettled"],
            "behind": one["behind"],
            "used": f"{charts.duration_text(max(0, now - one['used_ms']) / 1000)} ago",
        }
        for one in found
    ]


class _DeadLetters:
    def __init__(self, console: Console, session: Session) -> None:
        self._console = console
        self._session = session
        self._letters: dict[str, Letter] = {}

    async def build(self, wanted: str) -> None:
        lines = await self._session.ask(administration.topics)
        counts = {one.name: one.records for one in lines if one.name.endswith(SUFFIX)}
        if not counts:
            note("No topic has dead letters: nothing was given up so far.")
            return
        names = {name: f"{name} ({count:,})" for name, count in sorted(counts.items())}
        first = wanted if wanted in names else max(counts, key=lambda name: counts[name])
        with ui.row().classes("w-full items-center"):
            self._topic = ui.select(names, value=first, on_change=self._refresh)
            self._topic.props('dense outlined aria-label="Topic" data-test="dead-topic"')
            ui.button("Refresh", on_click=self._refresh).props("outline")
            ui.space()
            ui.button("Replay all shown", icon="o_replay", on_click=self._replay_all).props(
                'outline data-test="replay-all"'
            )
        note(
            "Replay sends a record back to the topic it came from, as it was. The letter stays;"
            " what was replayed is marked until the console restarts."
        )
        self._table = ui.table(
            rows=[], columns=charts.columns(_LETTERS), row_key="id",
            pagination={"rowsPerPage": 25},
        ).classes("w-full").props('flat dense data-test="letters"')  # fmt: skip
        self._table.add_slot("body-cell-replayed", _REPLAY_CELL)
        self._table.on("replay", lambda event: self._replay([event.args["id"]]))
        self._table.on(
            "show", lambda event: record_dialog(self._letters[event.args["id"]].row, None)
        )
        await self._refresh()

    async def _refresh(self) -> None:
        topic = str(self._topic.value)

        def read(cluster: Cluster) -> list[Letter]:
            rows = browsing.newest(cluster, browsing.places(cluster, topic), _SHOWN)
            return [dead_letters.read_letter(row) for row in rows]

        async def show() -> None:
            found = await self._session.ask(read)
            self._letters = {f"{one.row.at}-{one.row.offset}": one for one in found}
            self._draw()

        await attempted(show())

    def _draw(self) -> None:
        self._table.rows = [
            {
                "id": name,
                "time": time_text(one.row.timestamp_ms),
                "source": f"{one.source} @ {one.source_offset}",
                "reason": one.reason,
                "attempts": one.attempts,
                "key": "" if one.row.key is None else short(one.row.key, 30),
                "value": short(one.row.value, 60),
                "replayed": self._mark(one.row.at, one.row.offset),
            }
            for name, one in self._letters.items()
        ]

    def _mark(self, at: Partition, offset: Offset) -> str:
        now = self._console.replayed.get((at, offset))
        return "" if now is None else f"replayed, now at offset {now}"

    async def _replay_all(self) -> None:
        await self._replay([row["id"] for row in self._table.rows if not row["replayed"]])

    async def _replay(self, names: list[str]) -> None:
        done = 0
        for name in names:
            letter = self._letters[name]

            async def send(letter: Letter = letter) -> None:
                _, offset = await self._session.ask(
                    lambda cluster: dead_letters.replay(cluster, letter)
                )
                self._console.note_replayed(letter.row.at, letter.row.offset, offset)

            if not await attempted(send()):
                break
            done += 1
        self._draw()
        if done:
            ui.notify(f"replayed {done} {'record' if done == 1 else 'records'}", type="positive")

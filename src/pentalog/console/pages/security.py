"""Users, rules and quotas, one view for all doors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

from nicegui import ui

from pentalog.clients.kafka import Cluster, KafkaFailed
from pentalog.console import rights
from pentalog.console.application import Console
from pentalog.console.identity import Session
from pentalog.console.pages import charts
from pentalog.console.pages.frame import (
    BUILD_TIMEOUT_S,
    attempted,
    frame,
    guarded,
    heading,
    note,
)
from pentalog.console.rights import NotOffered, QuotaOf, Rule, User

T = TypeVar("T")

_REMOVE_CELL: Final = (
    '<q-td :props="props"><q-btn flat dense no-caps size="sm" color="negative" label="Remove"'
    " @click=\"() => $parent.$emit('remove', props.row)\" /></q-td>"
)


def register(console: Console) -> None:
    @ui.page("/security", response_timeout=BUILD_TIMEOUT_S)
    @guarded(console)
    async def page() -> None:
        with frame(console, "Security", "/security") as session:
            note(f"You are {session.user or 'not logged in'}; the broker answers what you may see.")
            for part in (_Users(session), _Rules(session), _Quotas(session)):
                await part.build()


class _Part(Generic[T]):
    """A table of things that can be added and removed."""

    title: str
    columns: Sequence[str]

    def __init__(self, session: Session) -> None:
        self._session = session
        self._things: list[T] = []

    @abstractmethod
    def ask(self, cluster: Cluster) -> list[T]: ...
    @abstractmethod
    def cells(self, thing: T) -> Sequence[str]: ...
    @abstractmethod
    def remove(self, cluster: Cluster, thing: T) -> None: ...
    @abstractmethod
    def form(self) -> None:
        """The fields of a new one."""

    @abstractmethod
    def add(self, cluster: Cluster) -> None:
        """Make what the form says."""

    async def build(self) -> None:
        name = self.title.lower()
        heading(self.title)
        try:
            self._things = await self._session.ask(self.ask)
        except (NotOffered, KafkaFailed) as error:
            note(str(error)).props(f'data-test="{name}-note"')
            return
        names = [(str(place), text) for place, text in enumerate(self.columns)]
        self._table = ui.table(
            rows=self._rows(), columns=charts.columns([*names, ("remove", "")]), row_key="id",
            pagination={"rowsPerPage": 25},
        ).classes("w-full")  # fmt: skip
        self._table.props(f'flat dense data-test="{name}" no-data-label="None are set"')
        self._table.add_slot("body-cell-remove", _REMOVE_CELL)
        self._table.on("remove", lambda event: self._remove(int(event.args["id"])))
        with (
            ui.expansion(f"Add a {name.removesuffix('s')}", icon="add")
            .classes("w-full pl-card")
            .props(f'data-test="adding-{name}"'),
            ui.element("form")
            .classes("w-full row items-center gap-3")
            .on("submit.prevent", self._add),
        ):
            self.form()
            ui.button("Add", on_click=self._add).props(f'unelevated data-test="add-{name}"')

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {"id": number, **{str(place): text for place, text in enumerate(self.cells(thing))}}
            for number, thing in enumerate(self._things)
        ]

    async def _refresh(self) -> None:
        self._things = await self._session.ask(self.ask)
        self._table.rows = self._rows()

    async def _add(self) -> None:
        if await attempted(self._session.ask(self.add), "added"):
            await self._refresh()

    def _remove(self, number: int) -> None:
        thing = self._things[number]
        with ui.dialog() as dialog, ui.card():
            ui.label(f"Remove {' '.join(self.cells(thing))}?")

            async def really() -> None:
                asked = self._session.ask(lambda cluster: self.remove(cluster, thing))
                if await attempted(asked, "removed"):
                    dialog.close()
                    await self._refresh()

            with ui.row().classes("w-full justify-end"):
                ui.button("Cancel", on_click=dialog.close).props("flat")
                ui.button("Remove", on_click=really).props(
                    'unelevated color=negative data-test="remove-really"'
                )
        dialog.open()


class _Users(_Part[User]):
    title = "Users"
    columns = ("User", "Logs in by")

    def ask(self, cluster: Cluster) -> list[User]:
        return rights.users(cluster)

    def cells(self, thing: User) -> Sequence[str]:
        return thing.name, thing.logs_in_by

    def remove(self, cluster: Cluster, thing: User) -> None:
        rights.delete_user(cluster, thing)

    def form(self) -> None:
        self._name = ui.input("Name").props('autocomplete=username data-test="new-user"')
        self._password = ui.input("Password", password=True).props(
            'autocomplete=new-password data-test="new-password"'
        )

    def add(self, cluster: Cluster) -> None:
        rights.set_password(cluster, self._name.value, self._password.value)


class _Rules(_Part[Rule]):
    title = "Rules"
    columns = ("Principal", "May", "Operation", "On", "Name", "Pattern", "From")

    def ask(self, cluster: Cluster) -> list[Rule]:
        return rights.rules(cluster)

    def cells(self, thing: Rule) -> Sequence[str]:
        return (
            thing.principal,
            rights.PERMISSIONS.get(thing.permission, str(thing.permission)),
            rights.OPERATIONS.get(thing.operation, str(thing.operation)),
            rights.RESOURCES.get(thing.resource, str(thing.resource)),
            thing.name,
            rights.PATTERNS.get(thing.pattern, str(thing.pattern)),
            thing.host,
        )

    def remove(self, cluster: Cluster, thing: Rule) -> None:
        rights.delete_rule(cluster, thing)

    def form(self) -> None:
        self._principal = ui.input("Principal", value="User:")
        self._permission = ui.select(rights.PERMISSIONS, value=3, label="May")
        self._operation = ui.select(rights.OPERATIONS, value=3, label="Operation")
        self._resource = ui.select(rights.RESOURCES, value=2, label="On")
        self._name = ui.input("Name")
        self._pattern = ui.select(rights.PATTERNS, value=3, label="Pattern")
        self._host = ui.input("From", value="*")

    def add(self, cluster: Cluster) -> None:
        rule = Rule(
            self._principal.value,
            int(self._permission.value),
            int(self._operation.value),
            int(self._resource.value),
            self._name.value,
            int(self._pattern.value),
            self._host.value,
        )
        rights.add_rule(cluster, rule)


class _Quotas(_Part[QuotaOf]):
    title = "Quotas"
    columns = ("Whose", "Quota", "Value")

    def ask(self, cluster: Cluster) -> list[QuotaOf]:
        return rights.quotas(cluster)

    def cells(self, thing: QuotaOf) -> Sequence[str]:
        return thing.whose, thing.quota, f"{thing.value:,.0f}"

    def remove(self, cluster: Cluster, thing: QuotaOf) -> None:
        rights.set_quota(cluster, thing, remove=True)

    def form(self) -> None:
        self._entity = ui.select(list(rights.ENTITIES), value="client-id", label="Whose")
        self._name = ui.input("Name", placeholder="any other").props('data-test="quota-name"')
        self._quota = ui.select(list(rights.QUOTAS), value=rights.QUOTAS[0], label="Quota")
        self._value = ui.number("Value", value=1_000_000, min=0)

    def add(self, cluster: Cluster) -> None:
        entity = ((str(self._entity.value), self._name.value or None),)
        rights.set_quota(cluster, QuotaOf(entity, str(self._quota.value), float(self._value.value)))

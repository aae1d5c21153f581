"""Logging in to a broker that demands it."""

from __future__ import annotations

from typing import Final

from nicegui import ui

from pentalog.clients.kafka.authentication import MECHANISMS
from pentalog.console.application import Console
from pentalog.console.pages.frame import attempted, frame

_FIRST: Final = "SCRAM-SHA-256"


def register(console: Console) -> None:
    @ui.page("/login")
    def login() -> None:
        with frame(console, "Log in") as session:
            if session.known:
                ui.label("Nothing to do here: this broker knows you, or wants to know nobody.")
                ui.link("To the overview", "/").classes("pl-link")
                return
            with ui.card().classes("pl-card q-pa-lg mx-auto").style("max-width: 24rem"):
                ui.label("Log in to the broker").classes("text-h6")
                with ui.element("form").classes("w-full column gap-3") as form:
                    user = ui.input("User").classes("w-full")
                    user.props('autofocus autocomplete=username data-test="user"')
                    password = ui.input("Password", password=True, password_toggle_button=True)
                    password.classes("w-full").props(
                        'autocomplete=current-password data-test="password"'
                    )
                    mechanism = ui.select(list(MECHANISMS), value=_FIRST, label="Mechanism")
                    mechanism.classes("w-full")

                    async def log_in() -> None:
                        asked = session.log_in(user.value, password.value, str(mechanism.value))
                        if await attempted(asked):
                            ui.navigate.to("/")

                    ui.button("Log in").classes("w-full").props(
                        'unelevated type=submit data-test="log-in"'
                    )
                form.on("submit.prevent", log_in)

"""What every page shares: the header, the way to the other pages, how failures are shown."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, ParamSpec
from urllib.parse import quote
from weakref import WeakKeyDictionary

from fastapi import Response
from fastapi.responses import RedirectResponse
from nicegui import Client, app, context, ui

from pentalog.clients.kafka.errors import Refused
from pentalog.console.application import Console
from pentalog.console.identity import Session, SessionOver, explain
from pentalog.model.kio_schemas import ErrorCode

P = ParamSpec("P")

NAVIGATION: Final = (
    ("/", "Overview", "o_space_dashboard"),
    ("/topics", "Topics", "o_list_alt"),
    ("/groups", "Groups", "o_groups"),
    ("/dead-letters", "Dead letters", "o_report"),
    ("/pipelines", "Pipelines", "o_account_tree"),
    ("/connections", "Connections", "o_lan"),
    ("/security", "Security", "o_shield"),
    ("/metrics", "Metrics", "o_insights"),
)
BUILD_TIMEOUT_S: Final = 30.0

_LOOK_S: Final = 3.0
_DENIALS: Final = frozenset(
    {
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.delegation_token_authorization_failed,
    }
)
_mains: Final[WeakKeyDictionary[Client, ui.column]] = WeakKeyDictionary()
"""Where the content of each page is."""

_STYLE: Final = """
:root { --pl-line: rgba(128,128,140,.22); --pl-soft: #5b6472; }
.body--dark { --pl-soft: #9aa4b5; }
body { font-family: "Inter", "Segoe UI", Roboto, system-ui, sans-serif; }
.body--light { background: #f5f6f9; }
.body--dark { background: #12151c; }
.pl-card { border: 1px solid var(--pl-line); border-radius: 10px; box-shadow: none; width: 100%; }
.body--light .pl-card { background: #fff; }
.body--dark .pl-card, .body--dark .q-table__card { background: #1a1f29; }
.pl-soft { color: var(--pl-soft); }
.pl-figure { min-width: 9.5rem; }
.pl-number { font-size: 1.5rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.pl-mono { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: .82rem; }
.pl-cell { max-width: 34rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.pl-code { white-space: pre-wrap; overflow-wrap: anywhere; max-height: 50vh; overflow: auto;
  border: 1px solid var(--pl-line); border-radius: 6px; padding: .6rem; margin: 0; width: 100%; }
.pl-link { color: var(--q-primary); text-decoration: none; }
.body--dark .pl-link { color: #9db7ff; }
.pl-link:hover { text-decoration: underline; }
.pl-nav { display: flex; align-items: center; gap: .75rem; padding: .55rem .8rem; width: 100%;
  border-radius: 8px; color: inherit; text-decoration: none; }
.pl-nav:hover { background: rgba(128,128,160,.14); }
.pl-nav[aria-current] { background: rgba(70,110,230,.16); font-weight: 600; }
.pl-skip { position: absolute; left: -100rem; }
.pl-skip:focus { left: .5rem; top: .5rem; z-index: 9999; background: #fff; color: #000;
  padding: .5rem; }
a:focus-visible, button:focus-visible, [tabindex]:focus-visible { outline: 2px solid #6c92ff;
  outline-offset: 2px; }
.q-table th { font-weight: 600; }
.q-table__card { box-shadow: none; border: 1px solid var(--pl-line); border-radius: 10px; }
.q-table__bottom--nodata { color: var(--pl-soft); }
.q-table__bottom--nodata .q-icon { display: none; }
.nicegui-content { padding: 0; }
@media (max-width: 599px) { .pl-cell { max-width: 14rem; } .pl-hide-phone { display: none; } }
"""

_KEYS: Final = """
document.addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest('input, textarea, [contenteditable]')) return;
  const field = document.querySelector('[data-find] input, input[data-find]');
  if (field) { event.preventDefault(); field.focus(); }
});
"""


def guarded(
    console: Console,
) -> Callable[[Callable[P, Awaitable[None]]], Callable[P, Awaitable[Response | None]]]:
    """Show a page to those who are known to the broker, the login to others."""

    def wrap(build: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[Response | None]]:
        @functools.wraps(build)
        async def shown(*args: P.args, **keywords: P.kwargs) -> Response | None:
            session = session_of(console)
            session.touch()
            if not session.known:
                return RedirectResponse("/login")
            await build(*args, **keywords)
            return None

        return shown

    return wrap


def session_of(console: Console) -> Session:
    """The browser that asks for the page."""
    return console.session_of(str(app.storage.browser["id"]))


@contextmanager
def frame(console: Console, title: str, active: str = "") -> Iterator[Session]:
    """The page around what is built inside; a failure to build it is told in its place."""
    session = session_of(console)
    _watch_page(console, session)
    ui.page_title(f"{title} · pentalog")
    ui.colors(primary="#3b5bdb", secondary="#5c6b8a", positive="#2b8a3e", negative="#c92a2a")
    ui.add_css(_STYLE)
    ui.add_body_html(f"<script>{_KEYS}</script>")
    dark = ui.dark_mode(session.dark)
    ui.html('<a class="pl-skip" href="#main">Skip to the content</a>', sanitize=False)
    drawer = _drawer(active)
    with ui.header().classes("items-center gap-2 q-py-sm").props("role=banner"):
        _icon("menu", "Open or close the menu", drawer.toggle).classes("lt-md")
        ui.link("pentalog", "/").classes("text-white text-weight-bold no-underline text-h6")
        ui.label(title).classes("ellipsis pl-hide-phone")
        ui.space()
        if session.user:
            ui.label(session.user).classes("pl-hide-phone")
            _icon("o_logout", "Log out", lambda: _log_out(session))

        def turn() -> None:
            session.dark = {None: True, True: False, False: None}[session.dark]
            dark.value = session.dark
            button.props(
                f'icon={_DARK_ICONS[session.dark]} aria-label="{_DARK_TEXTS[session.dark]}"'
            )

        button = _icon(_DARK_ICONS[session.dark], _DARK_TEXTS[session.dark], turn)
    with (
        ui.column()
        .classes("w-full q-pa-md gap-4 mx-auto")
        .style("max-width: 1400px")
        .props("id=main role=main tabindex=-1")
    ) as main:
        _mains[context.client] = main
        try:
            yield session
        except Exception as error:  # the rest of the page still leads on
            failure(explain(error))


_DARK_ICONS: Final = {None: "o_brightness_auto", True: "o_dark_mode", False: "o_light_mode"}
_DARK_TEXTS: Final = {
    None: "Colours follow the system; change to dark",
    True: "Dark; change to light",
    False: "Light; change to what the system says",
}


def _drawer(active: str) -> ui.left_drawer:
    # Without a value it would be asked of the browser, which may have left for another page.
    drawer = ui.left_drawer(value=False, bordered=True).classes("q-pa-sm")
    drawer.props("show-if-above width=210 role=navigation")
    with drawer, ui.column().classes("w-full gap-1"):
        for path, text, icon in NAVIGATION:
            link = ui.link(target=path).classes("pl-nav").props(f'data-test="nav-{text.lower()}"')
            if path == active:
                link.props('aria-current="page"')
            with link:
                ui.icon(icon).props("aria-hidden=true").classes("text-h6")
                ui.label(text)
    return drawer


def _icon(name: str, text: str, action: Callable[[], Any]) -> ui.button:
    return ui.button(icon=name, on_click=action).props(
        f'flat round dense color=white aria-label="{text}"'
    )


def _log_out(session: Session) -> None:
    session.log_out()
    ui.navigate.to("/login")


def _watch_page(console: Console, session: Session) -> None:
    """Have a page end with its session, and its connections to the broker with the page."""
    client = context.client
    console.pages[client.id] = session
    session.page_opened()

    def closed() -> None:
        if console.pages.pop(client.id, None) is not None:
            session.page_closed()

    client.on_delete(closed)
    if not session.user:
        return

    def look() -> None:
        if not session.known:
            ui.navigate.to("/login")

    ui.timer(_LOOK_S, look)


def is_denied(error: BaseException) -> bool:
    """Whether the broker does not let this user see or do it."""
    return isinstance(error, Refused) and error.code in _DENIALS


def _show_denial(client: Client, text: str) -> None:
    """Leave nothing of a page whose user may not see it any more."""
    main = _mains.get(client)
    if main is not None:
        main.clear()
        with main:
            failure(text)


def failure(text: str) -> ui.element:
    """A line in place of what could not be shown."""
    with (
        ui.row()
        .classes("items-center no-wrap w-full")
        .props('role=alert data-test="failure"') as row
    ):
        ui.icon("o_error", color="negative").classes("text-h5")
        ui.label(text).classes("col")
    return row


def every(interval_s: float, action: Callable[[], Awaitable[None]]) -> None:
    """Do something again and again; while it fails, a line says why.

    If the broker refuses it by now, the page is emptied; if the session is over, left.
    """
    client = context.client
    line = failure("")
    line.set_visibility(False)
    text = line.default_slot.children[-1]
    assert isinstance(text, ui.label)

    async def step() -> None:
        try:
            await action()
        except SessionOver:
            ui.navigate.to("/login")
        except Exception as error:  # the next turn may go well
            if is_denied(error):
                _show_denial(client, explain(error))
                return
            text.set_text(explain(error))
            line.set_visibility(True)
        else:
            line.set_visibility(False)

    ui.timer(interval_s, step, immediate=False)


def note(text: str) -> ui.label:
    """A line of explanation."""
    return ui.label(text).classes("pl-soft")


def heading(text: str) -> ui.element:
    """A heading for a page's part, for screen readers too."""
    return ui.label(text).classes("text-h6").props("role=heading aria-level=2")


def topic_address(topic: str) -> str:
    # Browsers take these for steps on a path, and the end of a line ends a path for the router.
    if topic in ("", ".", "..") or not topic.isprintable():
        return f"/topics/?called={quote(topic, safe='')}"
    return f"/topics/{quote(topic, safe='')}"


def group_address(group: str) -> str:
    return f"/groups/{quote(group, safe='')}"


async def attempted(action: Awaitable[Any], done: str = "") -> bool:
    """Do something for the user; says what became of it."""
    try:
        await action
    except SessionOver:
        ui.navigate.to("/login")
        return False
    except Exception as error:  # told to the user, who decides what to do
        ui.notify(explain(error), type="negative", multi_line=True, timeout=10_000)
        return False
    if done:
        ui.notify(done, type="positive")
    return True

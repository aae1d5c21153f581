"""What a request must be before a page is built for it.

Browsers reach a console on this machine in the name of any page they show.  So a request must name
this console (DNS rebinding), come from one of its own pages (cross-site requests), and is counted
before it costs anything: a page, a socket of a page, a message on it.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable
from contextlib import suppress
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qs, urlsplit

from nicegui import Client
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pentalog.console.application import Console
from pentalog.console.identity import Session

PAGES_MAX: Final = 500
SOCKETS_PER_PAGE_MAX: Final = 4
MESSAGE_MAX: Final = 64 << 10
"""Characters or bytes of one message, before its sender has logged in."""
SECURITY_HEADERS: Final = (
    (
        "content-security-policy",
        # NiceGUI's page is a script in the page, and Vue compiles templates in the browser.
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
        "connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'",
    ),
    ("x-frame-options", "DENY"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)
_SOCKETS: Final = "/_nicegui_ws"
_ASSETS: Final = "/_nicegui/"
_EVENT: Final = '42["event"'
_PAGE: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CLOSED: Final = ""
"""Counts sockets of pages that are closed."""
_CLOSED_SOCKETS_MAX: Final = 20
_RELOAD_S: Final = 10
_POLICY_VIOLATION: Final = 1008
_TOO_BIG: Final = 1009


class Doorway:
    """An ASGI application around the pages."""

    def __init__(self, app: ASGIApp, console: Console, names: tuple[str, ...]) -> None:
        """`names` are those that browsers may call the console by, besides addresses."""
        self.app = app
        self._console = console
        self._names = frozenset(name.lower() for name in names)
        self._sockets: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        status, text = self._refusal(scope)
        if status:
            await _refuse(scope, receive, send, status, text)
        elif scope["path"].startswith(_SOCKETS):
            await self._serve_socket(scope, receive, send)
        elif scope["path"].startswith(_ASSETS) or self._make_room():
            await self.app(scope, receive, send)
        else:
            await _refuse(scope, receive, send, 503, "Too many pages are open; close some of them.")

    def _refusal(self, scope: Scope) -> tuple[int, str]:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(_host_only(hosts[0])):
            name = ", ".join(hosts)[:200]
            return 403, (
                f"{name!r} is not a name of this console; use its address, or name it with "
                "--advertise http=HOST:PORT when the broker is started (--name HOST if the console "
                "is started by itself)."
            )
        origin = headers.get("origin")
        if origin is not None and not self._is_own_page(origin, hosts[0]):
            return 403, f"A page of {origin[:200]!r} may not use this console."
        elsewhere = headers.get("sec-fetch-site", "none") in ("cross-site", "same-site")
        if elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return 403, "A page of another site may not use this console."
        socket = scope["path"].startswith(_SOCKETS)
        if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD") and not socket:
            return 405, f"{scope['method'][:20]} is not served; GET and HEAD are."
        return 0, ""

    def _is_ours(self, name: str) -> bool:
        name = name.lower()
        if name in self._names or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True

    def _is_own_page(self, origin: str, host: str) -> bool:
        try:
            found = urlsplit(origin)
            name = found.hostname or ""
        except ValueError:
            return False
        if found.scheme not in ("http", "https"):
            return False
        # A proxy in front may have put another Host in the place of the browser's.
        return found.netloc.lower() == host.lower() or name in self._names

    def _make_room(self) -> bool:
        """Close pages that are missed least until another one may be opened."""
        while len(Client.instances) >= PAGES_MAX:
            victim = min(Client.instances.values(), key=self._rank)
            if self._rank(victim)[0] > 1:
                return False
            victim.delete()
        return True

    def _rank(self, client: Client) -> tuple[int, float]:
        """Pages without a browser first, then those of browsers that have to log in; by age."""
        if not client.has_socket_connection:
            return 0, client.created
        session = self._console.pages.get(client.id)
        return (2 if session is not None and session.known else 1), client.created

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=50)
        page = query.get("client_id", [""])[0]
        if page not in Client.instances:
            await self._reload(page, scope, receive, send)
            return
        session = self._console.pages.get(page)
        if scope["type"] == "http":
            if scope["method"] == "POST" and session is not None:
                session.touch()
            await self.app(scope, receive, send)
            return
        if self._sockets[page] >= SOCKETS_PER_PAGE_MAX:
            await _refuse(scope, receive, send, 503, "This page has too many connections.")
            return
        await self._count(page, self.app(scope, _heard(receive, session), send))

    async def _reload(self, page: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Let NiceGUI tell a browser whose page is closed to load it again.

        A page without a connection is closed after a while, for example when a laptop sleeps.  Its
        script reloads it if NiceGUI refuses the handshake, but not if the socket is refused here.
        """
        full = self._sockets[_CLOSED] >= _CLOSED_SOCKETS_MAX
        if scope["type"] == "http" or full or not _PAGE.fullmatch(page):
            await _refuse(scope, receive, send, 403, "This page is closed; load it again.")
            return
        with suppress(TimeoutError):
            serving = self.app(scope, _heard(receive, None), send)
            await self._count(_CLOSED, asyncio.wait_for(serving, _RELOAD_S))

    async def _count(self, page: str, serving: Awaitable[None]) -> None:
        self._sockets[page] += 1
        try:
            await serving
        finally:
            self._sockets[page] -= 1
            if not self._sockets[page]:
                del self._sockets[page]


def _heard(receive: Receive, session: Session | None) -> Receive:
    """What a socket receives; notes what its user does, and ends at a message that is too long."""

    async def hear() -> Message:
        message = await receive()
        if message["type"] != "websocket.receive":
            return message
        text, data = message.get("text") or "", message.get("bytes") or b""
        known = session is not None and session.known
        if not known and max(len(text), len(data)) > MESSAGE_MAX:
            return {"type": "websocket.disconnect", "code": _TOO_BIG}
        if session is not None and text.startswith(_EVENT):
            session.touch()
        return message

    return hear


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": text[:100]})
        return
    await PlainTextResponse(f"{text}\n", status)(scope, receive, send)


def _host_only(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]

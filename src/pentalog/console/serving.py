"""The console's own port: who may connect, and until when it is served."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import FastAPI
from nicegui import Client, binding, ui
from nicegui import app as pages_app

from pentalog.clients.kafka import KafkaFailed, parse_servers
from pentalog.console import pages
from pentalog.console.application import Console
from pentalog.console.doorway import SECURITY_HEADERS, Doorway
from pentalog.console.patience import PatientProtocol
from pentalog.console.place import Place

_log: Final = logging.getLogger("pentalog.console")

_LOOK_INTERVAL_S: Final = 5.0
_ICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32"'
    ' rx="7" fill="#3b5bdb"/><g fill="#fff"><rect x="7" y="7" width="18" height="2.4" rx="1.2"/>'
    '<rect x="7" y="11.4" width="18" height="2.4" rx="1.2"/>'
    '<rect x="7" y="15.8" width="18" height="2.4" rx="1.2"/>'
    '<rect x="7" y="20.2" width="18" height="2.4" rx="1.2"/>'
    '<rect x="7" y="24.6" width="11" height="2.4" rx="1.2"/></g></svg>'
)


class ListenRefused(Exception):
    """The address cannot be served; the text says why and what to do."""


def serve(
    place: Place,
    listen: str,
    keys: tuple[str, str | None] | None = None,
    *,
    with_parent: bool = False,
    open_to_all: bool = False,
) -> None:
    """Serve pages until a signal, or until standard input ends if told so.

    By HTTPS with `keys`, the files of a certificate and of its key.  Without logins other machines
    are served only if it is to be `open_to_all`.
    """
    identity = None if keys is None else Certificate(*keys)
    listening = _bound(listen)
    host, port = listening.getsockname()[:2]
    if not (place.login or open_to_all or ip_address(host).is_loopback):
        listening.close()
        raise ListenRefused(
            f"{listen} would serve everybody who can reach this machine without a login; listen "
            "on 127.0.0.1, demand a login with --login, or add --allow-open"
        )
    console = Console(place)
    application = Doorway(
        _application(console, port, identity), console, (*place.names, _name_of(listen))
    )
    config = uvicorn.Config(
        application,
        http=PatientProtocol,
        log_config=None,
        log_level="warning",
        access_log=False,
        ws_max_size=16 << 20,
        headers=list(SECURITY_HEADERS),
        server_header=False,
        proxy_headers=False,
    )
    if identity is not None:
        config.load()
        config.ssl = identity.context
    server = uvicorn.Server(config)
    if with_parent:
        threading.Thread(target=_end_with_parent, args=(server,), daemon=True).start()
    shown = f"[{host}]" if ":" in host else host
    scheme = "http" if identity is None else "https"
    print(f"console listening on {scheme}://{shown}:{port}", flush=True)
    asyncio.run(server.serve(sockets=[listening]))


class Certificate:
    """What browsers are shown; read again when the file has changed."""

    def __init__(self, file: str, key: str | None) -> None:
        """Raises `ListenRefused` if the files cannot be used."""
        self._files = (file, key)
        self._stamp = self._look()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self.context.load_cert_chain(*self._files)
        except (OSError, ssl.SSLError) as error:
            raise ListenRefused(
                f"the certificate {file} cannot be used: {error}; name PEM files of a certificate "
                "and its key"
            ) from error

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            stamp = self._look()
            if stamp is None or stamp == self._stamp:
                continue
            self._stamp = stamp
            try:
                self.context.load_cert_chain(*self._files)
            except (OSError, ssl.SSLError) as error:
                _log.error("the console goes on with the certificate it had: %s", error)

    def _look(self) -> int | None:
        try:
            return Path(self._files[0]).stat().st_mtime_ns
        except OSError:
            return None


def _application(console: Console, port: int, identity: Certificate | None) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(console.measure()), asyncio.create_task(console.tidy())]
        if identity is not None:
            tasks.append(asyncio.create_task(identity.keep()))
        yield
        for task in tasks:
            task.cancel()
        await console.close()

    application = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    pages.register(console)
    ui.run_with(
        application,
        title="pentalog",
        favicon=_ICON,
        dark=None,
        storage_secret=secrets.token_urlsafe(32),
        # Cookies know nothing of ports, and there may be two brokers on one machine.
        session_middleware_kwargs={
            "same_site": "strict",
            "session_cookie": f"pentalog-{port}",
            "https_only": identity is not None,
        },
        show_welcome_message=False,
        # A page whose connection was lost for longer is loaded again and forgets what was entered.
        reconnect_timeout=60.0,
        binding_refresh_interval=0.5,
    )
    # NiceGUI warns from 10 ms on, which says more about the machine than about a page.
    binding.MAX_PROPAGATION_TIME = 1.0
    pages_app.on_exception(lambda error: _log.warning("a page failed: %r", error))
    pages_app.on_connect(partial(_check_browser, console))
    return application


def _check_browser(console: Console, client: Client) -> None:
    """Close a page of a user that another browser than theirs tries to use."""
    session = console.pages.get(client.id)
    came = (client.environ or {}).get("asgi.scope", {}).get("session", {}).get("id")
    if session is not None and session.user and came != client.request.session.get("id"):
        _log.warning("a page of %s was asked for by another browser, and is closed", session.user)
        client.delete()


def _name_of(listen: str) -> str:
    return listen.rpartition(":")[0].strip("[]")


def _bound(listen: str) -> socket.socket:
    try:
        ((host, port),) = parse_servers(listen if not listen.endswith(":0") else f"{listen[:-1]}1")
    except (KafkaFailed, ValueError):
        raise ListenRefused(
            f"{listen!r} is not HOST:PORT, for example 127.0.0.1:9645; correct it"
        ) from None
    port = 0 if listen.endswith(":0") else port
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise ListenRefused(
            f"cannot listen on {listen}: {error.strerror or error}; choose another one, with"
            " --console HOST:PORT if this is a broker's console"
        ) from error
    return listening


def _end_with_parent(server: uvicorn.Server) -> None:
    """The parent holds the other end of standard input, and takes it along however it ends."""
    sys.stdin.buffer.read()
    server.should_exit = True

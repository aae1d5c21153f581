"""The web console beside a broker: whether there is one, and how it is started."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from pentalog.config import Config

if TYPE_CHECKING:
    from pentalog.app import App
    from pentalog.gateway import Gateway
    from pentalog.server.companion import Companion
    from pentalog.session import Address

_log: Final = logging.getLogger("pentalog.console")


def companion(config: Config, app: App | Gateway, told: Callable[[str], None]) -> Companion | None:
    """The console as a process, not yet started; None where there is none to be.

    It goes with the http listener, and talks to the broker through a Kafka one.  `told` gets its
    address when it is up.
    """
    kafka = _kafka_listener(app.addresses)
    http = _http_listener(app.addresses)
    if not config.console.served or http is None or kafka is None:
        return None
    if importlib.util.find_spec("nicegui") is None:
        _log.info("no web console: it is not installed; pip install 'pentalog[console]' adds it")
        return None
    from pentalog.server.companion import Companion

    def up(line: str) -> None:
        url = line.rpartition(" ")[2]
        app.show_console(url)
        told(url)
        _log.info("web console at %s", url)

    words = command(config, app.addresses, kafka, http)
    # Not among the words: everybody on the machine can read those.
    secret = {"PENTALOG_CONSOLE_KEY": app.console_key}
    down = partial(app.show_console, None)
    return Companion("console", words, up, down, environment=secret)


def command(config: Config, addresses: Mapping[str, Address], kafka: str, http: str) -> list[str]:
    """How it is told where the broker is, by the names of these listeners."""
    words = [
        *(sys.executable, "-m", "pentalog.console", "--with-parent"),
        *("--listen", str(config.console)),
        *("--servers", _reachable(addresses[kafka])),
        *("--http", _reachable(addresses[http])),
        *("--data", str(config.data.resolve())),
        *("--log-level", "warning"),
    ]
    for file in config.console_pipelines:
        words += ["--pipelines", str(file.resolve())]
    demands = kafka.split("+")[1:]
    if "sasl" in demands:
        words.append("--login")
    if "tls" in demands:
        words.append("--tls")
    if "tls" in http.split("+"):
        words += ["--http-tls", "--certificate", config.tls_certificate]
        if config.tls_key:
            words += ["--key", config.tls_key]
    if config.tls_certificate:
        words += ["--tls-certificate", config.tls_certificate]
    return words


def _http_listener(addresses: Mapping[str, Address]) -> str | None:
    """Where there are several, the one that shows that browsers are to be served by TLS."""
    names = [name for name in addresses if name.partition("+")[0] == "http"]
    return max(names, key=lambda name: "tls" in name, default=None)


def _kafka_listener(addresses: Mapping[str, Address]) -> str | None:
    """The one that knows who is calling, if there is such a one."""
    names = [name for name in addresses if name.partition("+")[0] == "kafka"]
    return max(names, key=lambda name: ("sasl" in name, "tls" not in name), default=None)


def _reachable(address: Address) -> str:
    """Listening everywhere is to be reached here."""
    text = str(address)
    for everywhere, here in (("0.0.0.0:", "127.0.0.1:"), ("[::]:", "[::1]:")):
        if text.startswith(everywhere):
            return here + text.removeprefix(everywhere)
    return text

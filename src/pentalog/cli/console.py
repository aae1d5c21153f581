"""The web console beside a broker: whether there is one, and how it is started."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Final

from pentalog.config import Config

if TYPE_CHECKING:
    from pentalog.app import App
    from pentalog.gateway import Gateway
    from pentalog.server.companion import Companion
    from pentalog.session import Address

_ENVIRONMENT: Final = (
    "HOME", "LANG", "LANGUAGE", "LC_*", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH",
    "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV", "XDG_CACHE_HOME",
)  # fmt: skip
_TABLES_ENVIRONMENT: Final = (
    "AWS_*", "AZURE_*", "GOOGLE_*", "HADOOP_*", "JAVA_HOME", "PENTALOG_CACHE", "SPARK_*", "YARN_*",
)  # fmt: skip
"""What the tables of `console_pipelines` may need."""

_log: Final = logging.getLogger("pentalog.console")


def companion(config: Config, app: App | Gateway, told: Callable[[str], None]) -> Companion | None:
    """The console as a process, not yet started; None where there is none to be.

    It goes with the http listener, and talks to the broker through a Kafka one.  `told` gets its
    address when it is up.
    """
    kafka = _kafka_listener(app.addresses, config.listener_principals)
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
    needed = environment(os.environ, with_pipelines=bool(config.console_pipelines))
    if "sasl" in kafka.split("+"):
        # Its users log in, and it shows what the key opens only to those who may see it.  Without
        # logins it sees what any client may see.  Not among the words: everybody on the machine
        # can read those.
        needed["PENTALOG_CONSOLE_KEY"] = app.console_key
    down = partial(app.show_console, None)
    return Companion("console", words, up, down, environment=needed)


def environment(ours: Mapping[str, str], *, with_pipelines: bool) -> dict[str, str]:
    """What the console needs of a broker's environment; tables may be in an object store."""
    accepted = (*_ENVIRONMENT, *(_TABLES_ENVIRONMENT if with_pipelines else ()))
    return {
        name: value
        for name, value in ours.items()
        if any(fnmatchcase(name, pattern) for pattern in accepted)
    }


def command(config: Config, addresses: Mapping[str, Address], kafka: str, http: str) -> list[str]:
    """How it is told where the broker is, by the names of these listeners."""
    words = [
        *(sys.executable, "-m", "pentalog.console", "--with-parent"),
        *("--listen", str(config.console)),
        *("--servers", _reachable(addresses[kafka])),
        *("--http", _reachable(addresses[http])),
        *("--data", str(config.data.resolve())),
        *("--log-level", "warning"),
        *("--session-idle-s", str(config.console_session_idle_ms / 1000)),
        *("--session-max-s", str(config.console_session_ms_max / 1000)),
    ]
    if config.allow_open_listeners:
        words.append("--allow-open")
    for advertised in config.advertise.values():
        if advertised.door == "http":
            words += ["--name", advertised.host]
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


def _kafka_listener(addresses: Mapping[str, Address], principals: Mapping[str, str]) -> str | None:
    """The one that knows who is calling, if there is such a one; else one of unknown clients."""
    names = [name for name in addresses if name.partition("+")[0] == "kafka"]
    return max(
        names,
        key=lambda name: ("sasl" in name, name not in principals, "tls" not in name),
        default=None,
    )


def _reachable(address: Address) -> str:
    """Listening everywhere is to be reached here."""
    text = str(address)
    for everywhere, here in (("0.0.0.0:", "127.0.0.1:"), ("[::]:", "[::1]:")):
        if text.startswith(everywhere):
            return here + text.removeprefix(everywhere)
    return text

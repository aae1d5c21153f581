"""Which door a listener's name opens, and whether it may be opened where it shall be."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from pentalog.config import Config, ConfigError, Listen
from pentalog.server.sharing import share
from pentalog.session import Endpoint

_log = logging.getLogger("pentalog.server")

_TLS: Final = "tls"


def endpoint_of(config: Config, listen: Listen, endpoints: Mapping[str, Endpoint]) -> Endpoint:
    """The endpoint that `kafka+sasl+tls` and the like name; raises `ConfigError`."""
    endpoint = endpoints.get(listen.door)
    if endpoint is None:
        known = ", ".join(endpoints)
        raise ConfigError(f"there is no listener {listen.name!r}; this broker has: {known}")
    known_demands = {_TLS, *endpoint.demands}
    for demand in listen.demands:
        if demand not in known_demands:
            accepted = ", ".join(sorted(f"{endpoint.name}+{known}" for known in known_demands))
            raise ConfigError(
                f"listener {listen.name!r} demands {demand!r}; accepted are {endpoint.name}, "
                f"{accepted} and several of them"
            )
    if listen.door == "kafka" and config.rustlog_on_kafka_port and "sasl" not in listen.demands:
        return share(endpoint, [endpoints["rustlog"]])
    return endpoint


def check_open_listeners(config: Config, listen: Sequence[tuple[Listen, Endpoint]]) -> None:
    """Nobody shall serve strangers by mistake; raises `ConfigError`."""
    if config.allow_open_listeners:
        return
    for wish, endpoint in _open_to_all(config, listen):
        raise ConfigError(
            f"listener {wish} would serve everybody who can reach this machine; demand a "
            f"login ({_advice(endpoint)}), listen on 127.0.0.1, or set allow_open_listeners"
        )

    if _open_console(config, listen):
        raise ConfigError(
            f"the web console at {config.console} would serve everybody who can reach this "
            "machine; let its users log in (a kafka+sasl listener), set console to "
            "127.0.0.1:9645 or off, or set allow_open_listeners"
        )


def warn_of_open_listeners(config: Config, listen: Sequence[tuple[Listen, Endpoint]]) -> None:
    if _open_console(config, listen):
        _log.warning(
            "the web console at %s accepts unauthenticated users from other machines, because "
            "allow_open_listeners is set",
            config.console,
        )
    for wish, _ in _open_to_all(config, listen):
        _log.warning(
            "listener %s serves everybody who can reach this machine: "
            "nobody is asked who he is, because allow_open_listeners is set",
            wish,
        )


def _open_to_all(
    config: Config, listen: Sequence[tuple[Listen, Endpoint]]
) -> list[tuple[Listen, Endpoint]]:
    return [
        (wish, endpoint)
        for wish, endpoint in listen
        if not is_loopback(wish.host) and not _authenticated(config, wish, endpoint)
    ]


def _open_console(config: Config, listen: Sequence[tuple[Listen, Endpoint]]) -> bool:
    """Would the console be reached from other machines without a login?

    It asks for one where there is a `kafka+sasl` listener, and only runs beside `http` and `kafka`.
    """
    doors = {wish.door for wish, _ in listen}
    if not config.console.served or not {"http", "kafka"} <= doors:
        return False
    if any(wish.door == "kafka" and "sasl" in wish.demands for wish, _ in listen):
        return False
    return not is_loopback(config.console.host)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _authenticated(config: Config, wish: Listen, endpoint: Endpoint) -> bool:
    if endpoint.authenticates or wish.demands & endpoint.demands:
        return True
    if endpoint.name == "cursus" and config.cursus_tls_accepts_plaintext:
        # Who comes without TLS has no certificate to show.
        return False
    return _TLS in wish.demands and config.tls_client_authentication == "required"


def _advice(endpoint: Endpoint) -> str:
    ways = sorted(f"{endpoint.name}+{demand}" for demand in endpoint.demands)
    return ", ".join([*ways, f"{endpoint.name}+tls with tls_client_authentication=required"])

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
    for wish, endpoint in listen:
        if is_loopback(wish.host) or _authenticated(config, wish, endpoint):
            continue
        if not config.allow_open_listeners:
            raise ConfigError(
                f"listener {wish} would serve everybody who can reach this machine; demand a "
                f"login ({_advice(endpoint)}), listen on 127.0.0.1, or set allow_open_listeners"
            )
        _log.warning(
            "listener %s serves everybody who can reach this machine: "
            "nobody is asked who he is, because allow_open_listeners is set",
            wish,
        )


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

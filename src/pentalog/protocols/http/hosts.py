"""Which names this broker answers to.

A page of another site can make its own name lead to this machine (DNS rebinding), and would then
read what only this machine's users may see.  An address, or localhost, is the name of no site.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address

from pentalog.config import Listen


def host_only(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def is_ours(host: str, advertised: Mapping[str, Listen]) -> bool:
    """True for addresses, localhost and the names advertised for the http listeners."""
    name = host_only(host).lower()
    if not name or name == "localhost" or name.endswith(".localhost"):
        return True
    if any(told.door == "http" and told.host.lower() == name for told in advertised.values()):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def refusal(host: str) -> str:
    return (
        f"{host[:200]!r} is not a name of this broker; use its address, or start it with "
        "--advertise http=HOST:PORT"
    )

"""Addresses of clients, as far as one client can choose its own."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

_SITE_BITS: Final = 64
"""One client may have every IPv6 address with these first bits."""


def site_of(host: str) -> str:
    """Return what counts as one address: an IPv4 address, or the /64 of an IPv6 address."""
    return host if ":" not in host else _network_of(host)


@lru_cache(maxsize=4096)
def _network_of(host: str) -> str:
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), _SITE_BITS), strict=False))

"""Who may come in: API keys of the configuration, or one for development on this machine."""

from __future__ import annotations

import hmac
import ipaddress
from typing import Final

from pentalog.config import Config

DEVELOPMENT_KEY: Final = "dev-key"


def accepted(key: str, config: Config, peer: str) -> bool:
    """Is this one of the keys?  Takes the same time for any key of the same length."""
    given = key.encode()
    known = [each.encode() for each in config.blipmq_api_keys]
    if not known and _is_local(peer):
        known = [DEVELOPMENT_KEY.encode()]
    found = False
    for each in known:
        found |= hmac.compare_digest(given, each)
    return found


def notice(config: Config) -> str | None:
    """What is to be said at the start, if there is something."""
    if config.blipmq_api_keys:
        return None
    return (
        f"blipmq: no API keys are set, so the development key {DEVELOPMENT_KEY!r} is accepted, "
        "from this machine only; set PENTALOG_BLIPMQ_API_KEYS=key1,key2 to admit others"
    )


def _is_local(peer: str) -> bool:
    host = peer.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool(address.is_loopback or (mapped is not None and mapped.is_loopback))

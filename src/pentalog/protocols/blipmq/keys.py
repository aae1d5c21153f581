"""Who may come in: keys and tokens of users, API keys of the configuration, or one for development.

The development key is good on this machine only, and only while the configuration has no keys.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
from typing import Final

from pentalog.broker.port import Broker
from pentalog.broker.security import ANONYMOUS, Principal
from pentalog.config import Config
from pentalog.session import Context

DEVELOPMENT_KEY: Final = "dev-key"
CONFIGURED: Final = Principal("User", "blipmq")
"""Whoever comes with a key of the configuration, unless a certificate or the listener says more."""


def owner(key: str, context: Context) -> Principal | None:
    """Whose key is this?  None: nobody's."""
    found = _of_user(key, context.broker)
    if found is not None:
        return found
    if not accepted(key, context.config, context.peer):
        return None
    if context.access.who != ANONYMOUS or not context.config.blipmq_api_keys:
        return context.access.who
    return CONFIGURED


def _of_user(key: str, broker: Broker) -> Principal | None:
    name = broker.users.owner_of_key(key.encode())
    if name is not None:
        return Principal("User", name)
    if not broker.tokens.enabled:
        return None
    try:
        secret = base64.b64decode(key, validate=True)
    except ValueError:
        return None
    token = broker.tokens.by_secret(secret)
    if token is None or broker.tokens.get(token.token_id) is None:
        return None
    return token.owner


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

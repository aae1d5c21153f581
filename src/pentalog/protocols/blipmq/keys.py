"""Who may come in: keys and tokens of users, API keys of the configuration, or one for development.

The development key is good on this machine only, and only while the configuration has no keys.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
from typing import Final, NamedTuple

from pentalog.broker.council import Council
from pentalog.broker.logins import KEY, Proof
from pentalog.broker.port import Broker
from pentalog.broker.security import ANONYMOUS, Access, Principal
from pentalog.config import Config
from pentalog.session import Context

DEVELOPMENT_KEY: Final = "dev-key"
_GATEWAY: Final = "pentalog gateway "
"""How one gateway's key begins at another; the owner's secret and a principal follow."""
CONFIGURED: Final = Principal("User", "blipmq")
"""Whoever comes with a key of the configuration, unless a certificate or the listener says more."""


class Owner(NamedTuple):
    """Whose a key is."""

    who: Principal
    token_id: str = ""
    """The delegation token it is the secret of, if it is one: good for a while only."""
    proof: Proof | None = None
    """The user's key, if it is one."""


def owner(key: str, context: Context) -> Owner | None:
    """Whose key is this?  None: nobody's."""
    found = _of_gateway(key, context.broker) or _of_user(key, context.broker)
    if found is not None:
        return found
    if not accepted(key, context.config, context.peer):
        return None
    if context.access.who != ANONYMOUS or not context.config.blipmq_api_keys:
        return Owner(context.access.who)
    return Owner(CONFIGURED)


def charged(access: Access) -> str:
    """Return what the client's subscriptions count for.

    All clients with a key of the configuration are one principal: addresses tell them apart.
    """
    return access.owner_here if access.who == CONFIGURED else access.owner


def forwarded(key: str, found: Owner, council: Council) -> bytes:
    """What a gateway logs in with at another one, for a client that came with this key.

    Where the key alone does not say who the client is, the gateway does; nothing if it does not
    know the gateways' secret yet.
    """
    if found.proof is not None or found.token_id or found.who in (ANONYMOUS, CONFIGURED):
        return key.encode()
    if not council.secret:
        return b""
    return f"{_GATEWAY}{council.secret}\n{found.who}".encode()


def _of_gateway(key: str, broker: Broker) -> Owner | None:
    """Whom another gateway has found a client to be; believed if it knows the gateways' secret."""
    secret = broker.council.secret
    if broker.knowledge.current or not secret or not key.startswith(_GATEWAY):
        return None
    said, _, name = key.removeprefix(_GATEWAY).partition("\n")
    if not hmac.compare_digest(said.encode(), secret.encode()):
        return None
    try:
        return Owner(Principal.parse(name))
    except ValueError:
        return None


def _of_user(key: str, broker: Broker) -> Owner | None:
    found = broker.users.by_key(key.encode())
    if found is not None:
        return Owner(Principal("User", found.user), proof=Proof(KEY, found.fingerprint))
    if not broker.tokens.enabled:
        return None
    try:
        secret = base64.b64decode(key, validate=True)
    except ValueError:
        return None
    token = broker.tokens.by_secret(secret)
    if token is None or broker.tokens.get(token.token_id) is None:
        return None
    return Owner(token.owner, token.token_id)


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

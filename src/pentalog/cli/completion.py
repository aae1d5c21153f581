"""Names that a shell may offer: topics and groups of the broker a command would ask."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from pentalog.cli import profiles

_TIMEOUT_MS: Final = 1000
_SERVER: Final = "127.0.0.1:9092"


def topics(ctx: Any, incomplete: str) -> list[str]:
    from pentalog.cli.client import Client

    def ask(server: str) -> list[str]:
        with Client(server, timeout_ms=_TIMEOUT_MS) as client:
            return [topic.name for topic in client.all_topics()]

    return _offered(ctx, incomplete, ask)


def groups(ctx: Any, incomplete: str) -> list[str]:
    from pentalog.cli.cluster import reached
    from pentalog.clients.kafka import groups as of_cluster

    def ask(server: str) -> list[str]:
        with reached(server, timeout_ms=_TIMEOUT_MS) as cluster:
            return [group.name for group in of_cluster.listed(cluster)]

    return _offered(ctx, incomplete, ask)


def _offered(ctx: Any, incomplete: str, ask: Callable[[str], list[str]]) -> list[str]:
    """Nothing rather than an error: a shell in the middle of a line cannot show one."""
    try:
        with profiles.chosen(ctx.find_root().params.get("profile")):
            server = ctx.params.get("server") or os.environ.get("PENTALOG_SERVER", _SERVER)
            return sorted(name for name in ask(server) if name.startswith(incomplete))
    except Exception:
        return []

"""One module per page; each has `register`, which makes its addresses known."""

from __future__ import annotations

from pentalog.console.application import Console
from pentalog.console.pages import (
    connections,
    dead_letters,
    groups,
    login,
    metrics,
    overview,
    pipelines,
    security,
    topic,
    topics,
)

_PAGES = (
    overview, topics, topic, groups, dead_letters, pipelines, connections, security, metrics,
    login,
)  # fmt: skip


def register(console: Console) -> None:
    for page in _PAGES:
        page.register(console)

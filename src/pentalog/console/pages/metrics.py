"""Placeholder while the page is being written."""

from __future__ import annotations

from pentalog.console.application import Console


def register(console: Console) -> None:
    del console

"""Brokers without waits for the disk, for tests that make many and crash none."""

from __future__ import annotations

import pytest

from pentalog.broker.state import State
from pentalog.log.files import RealFiles


def leave_unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RealFiles, "sync", lambda files, file: None)
    monkeypatch.setattr(RealFiles, "sync_directory", lambda files, path: None)
    monkeypatch.setitem(State.__init__.__kwdefaults__, "synced", False)

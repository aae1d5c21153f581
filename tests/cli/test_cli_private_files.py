"""What commands write is for the user who ran them, whatever the umask says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import pentalog
from pentalog.cli import backups, profiles
from pentalog.clients.kafka import Cluster


@pytest.fixture(autouse=True)
def _generous_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    assert os.umask(before) == 0


def open_to_others(directory: Path) -> set[str]:
    every = [directory, *directory.rglob("*")]
    return {str(path) for path in every if path.stat().st_mode & 0o077}


def test_backups_and_what_is_restored_from_them(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with pentalog.Broker(data) as broker, Cluster(broker.address("kafka")) as cluster:
        cluster.create_topic("kept", 2)
    first, second, restored = (tmp_path / name for name in ("first", "second", "restored"))
    backups.take(data, first)
    backups.take(data, second, base=first, link=True)
    backups.restore(second, restored)
    for directory in (first, second, restored):
        assert len(list(directory.rglob("*"))) > 5
        assert open_to_others(directory) == set()


def test_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    profiles.write({"prod": {"server": "one:9092"}})
    assert profiles.path().stat().st_mode & 0o077 == 0
    assert profiles.read() == {"prod": {"server": "one:9092"}}

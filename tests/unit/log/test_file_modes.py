"""Only the owner of a data directory may read it, whatever the umask says."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import pentalog
from pentalog.clients.kafka import Cluster
from pentalog.log.directories import lock_directory
from pentalog.log.files import RealFiles
from pentalog.model import batch
from pentalog.model.types import Partition, Record

OTHERS = stat.S_IRWXG | stat.S_IRWXO


@pytest.fixture(autouse=True)
def _generous_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(directory: Path) -> set[str]:
    every = [directory, *directory.rglob("*")]
    return {str(path) for path in every if not path.is_symlink() and path.stat().st_mode & OTHERS}


def test_a_broker_keeps_everything_to_itself(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with pentalog.Broker(data) as broker:
        with Cluster(broker.address("kafka")) as cluster:
            cluster.create_topic("private", 1)
            built = batch.build([Record(b"for nobody else")], timestamp_ms=1)
            cluster.produce(Partition("private", 0), bytes(built))
        names = {path.name for path in data.rglob("*")}
        assert {"pentalog.sqlite", "pentalog.sqlite-wal", "pentalog.sqlite-shm", ".lock"} <= names
        assert open_to_others(data) == set()
    assert open_to_others(data) == set()
    assert data.stat().st_mode & stat.S_IRWXU == stat.S_IRWXU


def test_the_directory_of_an_earlier_version_is_restricted_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pentalog.log")
    partition = tmp_path / "data" / "topic-0"
    partition.mkdir(parents=True)
    for file in (partition / "0.log", tmp_path / "data" / ".lock", tmp_path / "data" / "journal"):
        file.write_text("old")
    outside = tmp_path / "outside"
    outside.write_text("not ours")
    (partition / "link").symlink_to(outside)
    lock_directory(RealFiles(), tmp_path / "data").close()
    assert open_to_others(tmp_path / "data") == set()
    assert outside.stat().st_mode & OTHERS
    (line,) = [record.getMessage() for record in caplog.records]
    assert "from 5 files" in line
    caplog.clear()
    lock_directory(RealFiles(), tmp_path / "data").close()
    assert caplog.records == []


def test_files_of_another_user_are_no_reason_not_to_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    (tmp_path / "data").mkdir()
    monkeypatch.setattr(os, "chmod", refuse)
    lock_directory(RealFiles(), tmp_path / "data").close()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "chmod -R go=" in line

"""What is found, kept and left behind for quick starts of Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pentalog.tables import archive

WHOLE = b"\xa8\xab\x0b\xf0 the rest"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a Java that is only a name."""
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="17.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("PENTALOG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def asked(prefix: str) -> str:
    (found,) = [one for one in archive.options() if one.startswith(prefix)]
    return found.removeprefix(prefix)


def test_the_first_session_leaves_an_archive_and_the_next_one_uses_it(cache: Path) -> None:
    left = Path(asked("-XX:ArchiveClassesAtExit="))
    assert left.parent == cache
    left.write_bytes(WHOLE)
    used = Path(asked("-XX:SharedArchiveFile="))
    assert used.read_bytes() == WHOLE
    assert list(cache.glob("*.new")) == []


def test_an_archive_that_is_not_whole_is_never_used(cache: Path) -> None:
    # Java writes the first bytes last; mapping such a file would crash it.
    Path(asked("-XX:ArchiveClassesAtExit=")).write_bytes(bytes(100))
    assert not any("SharedArchiveFile" in one for one in archive.options())


def test_one_process_at_a_time_makes_it(cache: Path) -> None:
    archive.options()
    (claim,) = cache.glob("*.claim")
    claim.write_text(str(os.getppid()))
    assert not any("Archive" in one for one in archive.options())
    ended = subprocess.Popen([sys.executable, "-c", ""], env=os.environ)
    ended.wait()
    claim.write_text(str(ended.pid))
    assert any("ArchiveClassesAtExit" in one for one in archive.options())


def test_another_java_has_another_archive(cache: Path, tmp_path: Path) -> None:
    first = Path(asked("-XX:ArchiveClassesAtExit="))
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="21.0.2"\n')
    assert Path(asked("-XX:ArchiveClassesAtExit=")).name.split(".")[:3] != first.name.split(".")[:3]


def test_a_cache_that_cannot_be_used_stops_nobody(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("not a directory")
    assert archive.options() == []


def test_without_java_it_says_what_to_install(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="1.8.0_292"\n')
    with pytest.raises(archive.NoJava, match=r"is Java 8; install a Java 17 or 21 runtime"):
        archive.java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(archive.NoJava, match=r"there is none in JAVA_HOME=.*; install a Java 17"):
        archive.java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(archive.NoJava, match="there is none on the PATH"):
        archive.java()

"""The Go SDK of Cursus, fetched by Go itself; skipped by name where Go or the module is not."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cursus_subject import Subject, running

pytestmark = pytest.mark.clients

MODULE = "github.com/cursus-io/cursus"
REVISION = "4373c0a"
PROGRAM = Path(__file__).parent / "cursus_go" / "main.go"


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with running(tmp_path_factory.mktemp("cursus-go")) as started:
        yield started


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test program, built; a build that fails is a failure, a module that is not there none."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("the Go SDK of Cursus: there is no Go on this machine")
    directory = tmp_path_factory.mktemp("go")
    shutil.copy(PROGRAM, directory / "main.go")
    (directory / "go.mod").write_text("module cursuscheck\n\ngo 1.22\n")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [go, *words],
            cwd=directory,
            env=os.environ | {"GOFLAGS": "-mod=mod"},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    fetched = run("get", f"{MODULE}/sdk@{REVISION}")
    if fetched.returncode:
        said = fetched.stderr.strip().splitlines()[-1:]
        pytest.skip(f"the Go SDK of Cursus: {MODULE}@{REVISION} cannot be fetched: {said}")
    built = run("build", "-o", "check", ".")
    assert built.returncode == 0, built.stderr
    return directory / "check"


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("mode", ["polling", "streaming"])
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_everything_comes_back(
    subject: Subject, program: Path, acks: str, mode: str, compression: str
) -> None:
    topic = f"go-{acks}-{mode}-{compression}"
    ran = subprocess.run(
        [program, subject.cursus, topic, acks, compression, mode, "50"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ,
    )
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stdout.splitlines() if line.startswith("message-")]
    assert sorted(lines) == sorted(f"message-{number}" for number in range(50))

"""One running broker for the command line's tests, and a way to run commands against it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import brokers

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the broker under test: ours, or the one the environment names."""
    other = os.environ.get("PENTALOG_TEST_BOOTSTRAP")
    if other:
        yield other
        return
    started = brokers.start_pentalog(tmp_path_factory.mktemp("broker"))
    with brokers.stopping(started):
        yield started.address


@pytest.fixture(scope="session")
def program() -> list[str]:
    """The command that every argument is given to."""
    return [sys.executable, "-c", "from pentalog.cli.main import main; main()"]


@pytest.fixture
def environment(broker: str) -> dict[str, str]:
    source = str(Path(__file__).resolve().parents[2] / "src")
    return {**os.environ, "PENTALOG_SERVER": broker, "PYTHONPATH": source}


@pytest.fixture
def run(program: list[str], environment: dict[str, str]) -> Run:
    """Run `pentalog ARGUMENTS` to its end."""

    def run_one(
        *arguments: str, stdin: bytes = b"", code: int = 0
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [*program, *arguments], input=stdin, capture_output=True, env=environment, timeout=60
        )
        assert done.returncode == code, done.stderr.decode()
        return done

    return run_one


@pytest.fixture
def topic() -> str:
    return f"cli-{uuid.uuid4().hex[:12]}"

"""One running broker for the command line's tests, and ways to run commands against it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pentalog

SOURCE = Path(__file__).resolve().parents[2] / "src"


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def lines(self) -> list[str]:
        return self.stdout.decode().splitlines()

    @property
    def said(self) -> str:
        """What went wrong."""
        return self.stderr.decode()


Run = Callable[..., Done]


@pytest.fixture(scope="session")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pentalog.Broker]:
    with pentalog.Broker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


@pytest.fixture(scope="session")
def program() -> list[str]:
    """The command that every argument is given to, as a process."""
    return [sys.executable, "-c", "from pentalog.cli.main import main; main()"]


@pytest.fixture
def settings(doors: pentalog.Broker, tmp_path: Path) -> dict[str, str]:
    """What commands find in the environment."""
    return {
        "PENTALOG_SERVER": doors.address("kafka"),
        "PENTALOG_RUSTLOG": doors.address("rustlog"),
        "PENTALOG_BLIPMQ": doors.address("blipmq"),
        "PENTALOG_HTTP": doors.address("http"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "COLUMNS": "120",
        "TERM": "dumb",
    }


@pytest.fixture
def environment(settings: dict[str, str]) -> dict[str, str]:
    return {**os.environ, **settings, "PYTHONPATH": str(SOURCE)}


@pytest.fixture
def run(settings: dict[str, str]) -> Run:
    """Run `pentalog ARGUMENTS` to its end, in this process: a start costs more than most verbs."""
    from pentalog.cli.verbs import app

    def run_one(*arguments: str, stdin: bytes = b"", code: int | None = 0) -> Done:
        result = CliRunner().invoke(
            app, list(arguments), input=stdin, env=settings, prog_name="pentalog"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        done = Done(result.exit_code, result.stdout_bytes, result.stderr_bytes)
        assert code in (None, done.returncode), done
        return done

    return run_one


@pytest.fixture
def start(
    program: list[str], environment: dict[str, str]
) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start `pentalog ARGUMENTS` as a process, for what cannot be done within this one."""
    started: list[subprocess.Popen[bytes]] = []

    def start_one(*arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def topic() -> str:
    return f"cli-{uuid.uuid4().hex[:12]}"

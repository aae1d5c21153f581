"""The exit codes of docs/cli.md: a row for each verb, the same as its help's, and true."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pentalog.cli.verbs import VERBS, app

Run = Callable[..., Any]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"

DONE: dict[str, tuple[str, ...]] = {
    "config": ("config",),
    "topic": ("topic", "list"),
    "produce": ("produce", "exit-codes"),
    "consume": ("consume", "exit-codes"),
    "group": ("group", "list"),
    "user": ("user", "list"),
    "quota": ("quota", "list"),
    "rustlog": ("rustlog", "topics"),
    "blipmq": ("blipmq", "publish", "exit-codes"),
    "bench": ("bench", "rustlog", "--records", "1", "--produce"),
    "inspect": ("inspect",),
    "profile": ("profile", "list"),
    "table": ("table", "init", "PLACE/pipeline.toml"),
}
REFUSED: dict[str, tuple[str, ...]] = {
    "topic": ("topic", "describe", "absent"),
    "produce": ("produce", "orders", "--server", "127.0.0.1:1"),
    "consume": ("consume", "absent"),
    "group": ("group", "delete", "absent"),
    "user": ("user", "list", "--server", "127.0.0.1:1"),
    "acl": ("acl", "list"),
    "token": ("token", "list"),
    "quota": ("quota", "list", "--server", "127.0.0.1:1"),
    "rustlog": ("rustlog", "topics", "--server", "127.0.0.1:1"),
    "blipmq": ("blipmq", "publish", "orders", "--server", "127.0.0.1:1"),
    "bench": ("bench", "kafka", "--server", "127.0.0.1:1"),
    "doctor": ("doctor", "--data", "PLACE/file", "--listen", "kafka=127.0.0.1:0"),
    "inspect": ("inspect", "4000000000"),
    "dump": ("dump", "PLACE/absent"),
    "backup": ("backup", "PLACE/copy", "--data", "PLACE/absent"),
    "restore": ("restore", "PLACE/absent", "--data", "PLACE/new"),
    "move": ("move", "--to", "kafka://127.0.0.1:1", "--server", "127.0.0.1:1"),
    "torture": ("torture", "PLACE/absent"),
    "profile": ("profile", "remove", "absent"),
    "table": ("table", "list", "PLACE/absent.toml"),
    "sql": ("sql", "select * from topic.orders", "--server", "127.0.0.1:1"),
    "verify": ("verify", "PLACE/absent.toml"),
}
MISUSED: dict[str, tuple[str, ...]] = {
    "config": ("config", "--node-id", "x"),
    "start": ("start", "--node-id", "x"),
}


def documented() -> dict[str, list[str]]:
    """The cells for 0, 1 and 2 of each verb."""
    found: dict[str, list[str]] = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].startswith("`"):
            for verb in re.findall(r"`([a-z]+)`", cells[0]):
                found[verb] = cells[1:]
    return found


def helped(verb: str) -> str:
    shown = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "400", "TERM": "dumb"})
    return " ".join(shown.stdout.split())


def filled(arguments: tuple[str, ...], place: Path) -> list[str]:
    (place / "file").touch()
    return [one.replace("PLACE", str(place)) for one in arguments]


def test_every_verb_has_a_row() -> None:
    assert documented().keys() == VERBS.keys()


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_says_the_same_codes(verb: str) -> None:
    _, found, behind = helped(verb).partition("Exit codes: ")
    assert found, f"`pentalog {verb} --help` says no exit codes"
    told = {code for code in "012" if re.search(rf"(?:^|[,;] ){code} ", behind)}
    assert told == {str(code) for code, cell in enumerate(documented()[verb]) if cell != "-"}


def test_every_code_is_tried() -> None:
    assert {verb for verb, cells in documented().items() if cells[1] != "-"} - REFUSED.keys() == {
        "start"  # needs a disk that fails while it stops
    }


@pytest.mark.parametrize("verb", DONE)
def test_done_is_0(run: Run, verb: str, tmp_path: Path) -> None:
    run("topic", "create", "exit-codes", code=None)
    run(*filled(DONE[verb], tmp_path), stdin=b"x\n", code=0)


@pytest.mark.parametrize("verb", REFUSED)
def test_refused_is_1(run: Run, verb: str, tmp_path: Path) -> None:
    run(*filled(REFUSED[verb], tmp_path), stdin=b"x\n", code=1)


@pytest.mark.parametrize("verb", VERBS)
def test_used_wrongly_is_2(run: Run, verb: str) -> None:
    run(*MISUSED.get(verb, (verb, "--no-such-flag")), code=2)

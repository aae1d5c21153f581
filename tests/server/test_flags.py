"""The quick way to read the flags of `pentalog start`: right, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from broker_process import pentalog

from pentalog.cli.broker import parse
from pentalog.config import SETTINGS


def test_every_setting_has_a_flag_both_ways() -> None:
    shown = pentalog("start", "--help", environment={"COLUMNS": "200"}).stdout
    for name in SETTINGS:
        flag = "--" + name.replace("_", "-")
        assert f"{flag} " in shown
        assert parse([flag, "1"]) in ({name: "1"}, {name: ["1"]})
        assert parse([f"{flag}=1"]) == parse([flag, "1"])


def test_repeated_flags_add_up_and_others_are_replaced() -> None:
    flags = ["--listen", "a=b:1", "--node-id", "1", "--listen=c=d:2", "--node-id", "2"]
    assert parse(flags) == {"listen": ["a=b:1", "c=d:2"], "node_id": "2"}
    assert parse(["--config", "x.toml", "--log-level", "debug"]) == {
        "config": "x.toml",
        "log_level": "debug",
    }
    assert parse([]) == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--node-id"],
        ["--node-id", "--data"],
        ["--node_id", "1"],
        ["x"],
        ["--colour", "1"],
    ],
)
def test_anything_unusual_is_left_to_the_long_way(arguments: list[str]) -> None:
    assert parse(arguments) is None


def test_a_wrong_flag_is_refused() -> None:
    run = pentalog("start", "--colour", "red")
    assert run.returncode == 2
    assert "--colour" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("verb", ["start", "config", "topic", "produce", "consume"])
def test_every_verb_has_help(verb: str) -> None:
    assert verb in pentalog("--help").stdout
    run = pentalog(verb, "--help")
    assert run.returncode == 0
    assert "Usage: pentalog" in run.stdout


def test_the_long_way_says_the_same(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    flags = ["start", "--listen", "kafka=127.0.0.1:0", "--data", str(in_the_way / "data")]
    quick = pentalog(*flags)
    script = "from pentalog.cli.verbs import app; app(prog_name='pentalog')"
    long = subprocess.run(
        [sys.executable, "-c", script, *flags],
        capture_output=True,
        text=True,
        timeout=30,
        env=os.environ,
    )
    assert quick.returncode == long.returncode == 2
    assert quick.stderr == long.stderr
    assert str(in_the_way) in long.stderr

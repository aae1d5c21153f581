"""Topics of any name on the command line: all are shown, none gives orders to a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pentalog
from pentalog.cli import output
from pentalog.clients.blipmq import BlipmqClient

Run = Callable[..., Any]
ODD = ("a/b", "..", "\x1b[2J\n\t", "[/bold]", "x" * 300)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pentalog.Broker(tmp_path_factory.mktemp("names")) as broker:
        with BlipmqClient(broker.address("blipmq")) as publisher:
            for name in ODD:
                publisher.publish(name, name[:10].encode())
        yield broker.address("kafka")


def test_all_are_listed(run: Run, server: str) -> None:
    listed = json.loads(run("topic", "list", "--server", server, "--json").stdout)
    assert {topic["topic"] for topic in listed} >= set(ODD)
    lines = run("topic", "list", "--server", server).stdout.decode().splitlines()
    assert all(line.replace("\t", "").isprintable() for line in lines)
    assert "\\x1b[2J\\n\\t\t1" in lines


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_each_can_be_read_and_written(run: Run, server: str, name: str) -> None:
    run("produce", name, "--server", server, stdin=b"by hand\n")
    arguments = ("--server", server, "--from", "beginning", "--count", "2", "--json")
    lines = run("consume", name, *arguments).stdout.decode().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["topic"] for record in records] == [name] * 2
    assert [record["value"] for record in records] == [name[:10], "by hand"]


def test_a_refusal_is_one_that_can_be_printed(run: Run, server: str) -> None:
    refused = run("topic", "describe", "\x1b[2Jnone", "--server", server, code=1).stderr
    assert b"\x1b" not in refused
    assert b"\\x1b[2Jnone" in refused


def test_a_table_takes_names_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    output.show_rows(["topic"], [["[/bold]"], ["\x1b[2J\n"]])
    shown = capsys.readouterr().out
    assert "[/bold]" in shown
    assert "\\x1b[2J\\n" in shown

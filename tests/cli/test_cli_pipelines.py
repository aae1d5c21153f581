"""What goes wrong with tables, queries and proofs is one line too, and starts no Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

WITH_FILE: list[tuple[str, ...]] = [
    ("table", "run", "FILE"),
    ("table", "run", "FILE", "--once"),
    ("table", "list", "FILE"),
    ("table", "status", "FILE"),
    ("table", "pause", "FILE"),
    ("table", "resume", "FILE"),
    ("table", "compact", "FILE"),
    ("table", "vacuum", "FILE"),
    ("table", "backfill", "FILE", "orders", "--from", "earliest"),
    ("table", "rebuild", "FILE", "orders"),
    ("table", "replay-dlq", "FILE", "orders"),
    ("table", "drop", "FILE", "orders", "--yes"),
    ("verify", "FILE"),
    ("sql", "select 1", "--config", "FILE"),
]
READING = [words for words in WITH_FILE if words[1] in ("run", "backfill") or words[0] == "verify"]
MISUSED: list[tuple[tuple[str, ...], str]] = [
    (("table", "init", "FILE", "--server", "nowhere"), "HOST:PORT"),
    (("table", "run", "FILE", "absent"), "it has: orders"),
    (("table", "run", "FILE", "--metrics", "nowhere"), "HOST:PORT"),
    (("table", "vacuum", "FILE", "--older-than", "soon"), "'10 seconds'"),
    (("table", "drop", "FILE", "orders"), "--yes"),
    (("verify", "FILE", "absent"), "it has: orders"),
    (("sql", "select 1", "--format", "xml"), "csv"),
    (("sql", "select 1", "--format", "parquet"), "--output PATH"),
    (("sql", "select 1", "--server", "nowhere"), "HOST:PORT"),
    (("sql", "--follow"), "needs a query"),
    (("sql", "select 1", "--follow", "--output", "x"), "pentalog table run"),
]
REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("table", "init", "FILE"), "name another file"),
    (("table", "init", "FILE/below.toml"), "name another place"),
    (("sql", "select 1", "--data", "FILE"), "name the --data of a broker"),
    (("sql", "select 1", "--output", "FILE/below/rows.csv"), "make it first"),
]


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(**_: object) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr("pentalog.tables.session.session", session)


@pytest.fixture
def ask(run: Run, tmp_path: Path) -> Callable[..., str]:
    """Run a command with a file of these words; what it says, which is one line, and where."""

    def ask_with(text: str | None, words: tuple[str, ...], code: int) -> str:
        file = tmp_path / "pipeline.toml"
        if text is not None:
            file.write_text(text)
        done = run(*(word.replace("FILE", str(file)) for word in words), code=code)
        said: str = done.said
        assert said.startswith("pentalog: ")
        assert said.count("\n") == 1, said
        assert done.stdout == b""
        return said

    return ask_with


def declared(source: str) -> str:
    return f"[pipeline.orders]\n{source}\ntopics = ['orders']\ninto = 'lake'\n"


@pytest.mark.parametrize("words", WITH_FILE, ids=" ".join)
def test_no_such_file(ask: Callable[..., str], words: tuple[str, ...]) -> None:
    said = ask(None, words, 1)
    assert "pipeline.toml: No such file" in said
    assert "pentalog table init FILE" in said


@pytest.mark.parametrize("words", WITH_FILE, ids=" ".join)
def test_a_file_of_something_else(ask: Callable[..., str], words: tuple[str, ...]) -> None:
    assert "pentalog table init FILE" in ask("orders into a table, please", words, 1)


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_nobody_answers_where_the_file_points(
    ask: Callable[..., str], words: tuple[str, ...]
) -> None:
    said = ask(declared("from = '127.0.0.1:1'"), words, 1)
    assert "pipeline orders: cannot reach 127.0.0.1:1" in said
    assert "pentalog start" in said


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_the_file_points_nowhere(ask: Callable[..., str], words: tuple[str, ...]) -> None:
    assert "for example 127.0.0.1:9092" in ask(declared("from = 'nowhere'"), words, 1)
    assert "name the --data of a broker" in ask(declared("data = 'absent'"), words, 1)


@pytest.mark.parametrize(("words", "hint"), MISUSED, ids=lambda one: " ".join(one))
def test_used_wrongly(ask: Callable[..., str], words: tuple[str, ...], hint: str) -> None:
    assert hint in ask(declared("from = '127.0.0.1:1'"), words, 2)


@pytest.mark.parametrize(("words", "hint"), REFUSED, ids=lambda one: " ".join(one))
def test_refused(ask: Callable[..., str], words: tuple[str, ...], hint: str) -> None:
    assert hint in ask(declared("from = '127.0.0.1:1'"), words, 1)


def test_what_is_known_is_shown_without_a_broker(run: Run, tmp_path: Path) -> None:
    """How far the tables are lies beside them; only the lag needs the log."""
    file = tmp_path / "pipeline.toml"
    file.write_text(declared("from = '127.0.0.1:1'"))
    done = run("table", "status", str(file))
    assert len(done.lines) == 3
    assert done.said.startswith("orders: lag unknown: cannot reach 127.0.0.1:1")
    assert done.said.count("\n") == 1


@pytest.mark.parametrize(
    "query", ["select 'topic.orders'", "select * from table.orders where name = 'topic.x'"]
)
def test_a_query_of_tables_alone_asks_nobody(run: Run, tmp_path: Path, query: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="Spark was started"):
        run("sql", query, "--server", "127.0.0.1:1")

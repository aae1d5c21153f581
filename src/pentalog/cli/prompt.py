"""The prompt of `pentalog sql`: history, completion, one answer per query."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import typer

from pentalog.cli.output import Refused
from pentalog.cli.private_files import make_private
from pentalog.cli.refusals import refusing

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from pyspark.sql import DataFrame

    from pentalog.tables.catalog import Catalog

_KEYWORDS: Final = (
    "select", "from", "where", "group by", "order by", "having", "limit", "join", "left", "right",
    "inner", "outer", "on", "as", "and", "or", "not", "in", "between", "like", "is", "null",
    "distinct", "count", "sum", "avg", "min", "max", "cast", "case", "when", "then", "else", "end",
    "with", "union", "all", "window", "explode", "from_json", "get_json_object", "show", "tables",
    "describe", "explain", "desc", "asc",
)  # fmt: skip
_WORD_MARKS: Final = "_.`-"


def converse(catalog: Catalog, show: Callable[[DataFrame], None]) -> None:
    """Ask for queries and show their rows until the end of input or `quit`."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory

    from pentalog.cli.sql import statements
    from pentalog.tables.archive import cache_directory

    cache_directory().mkdir(parents=True, exist_ok=True)
    history = cache_directory() / "sql_history"
    make_private(history)
    session: PromptSession[str] = PromptSession(
        history=FileHistory(str(history)),
        completer=_completer(names(catalog)),
    )
    typer.echo("SQL over topic.NAME and table.NAME; end it with quit or Ctrl-D.")
    while True:
        try:
            text = session.prompt("pentalog> ")
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text.strip().rstrip(";").lower() in ("quit", "exit"):
            return
        for statement in statements(text):
            try:
                with refusing():
                    show(catalog.sql(statement))
            except Refused as error:
                typer.echo(f"pentalog: {error}", err=True)
            except KeyboardInterrupt:
                typer.echo("interrupted", err=True)


def names(catalog: Catalog) -> list[str]:
    """Every topic and table a query can use now; none if the broker does not answer."""
    try:
        with refusing():
            topics = catalog.places.topics()
    except Refused:
        topics = []
    return [f"topic.{_quoted(name)}" for name in topics] + [
        f"table.{_quoted(name)}" for name in catalog.places.tables()
    ]


def suggestions(text: str, known: Iterable[str]) -> list[tuple[str, int]]:
    """What may follow the text before the cursor: (word, characters of it already typed)."""
    start = len(text)
    while start and (text[start - 1].isalnum() or text[start - 1] in _WORD_MARKS):
        start -= 1
    word = text[start:].lower()
    if not word:
        return []
    candidates = [*known, *_KEYWORDS]
    return [(one, len(word)) for one in candidates if one.lower().startswith(word) and one != word]


def _quoted(name: str) -> str:
    regular = name.isascii() and name.replace("_", "a").isalnum()
    return name if regular else f"`{name}`"


def _completer(known: list[str]) -> Completer:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    class Names(Completer):
        def get_completions(
            self, document: Document, complete_event: CompleteEvent
        ) -> Iterable[Completion]:
            for word, typed in suggestions(document.text_before_cursor, known):
                yield Completion(word, start_position=-typed)

    return Names()
